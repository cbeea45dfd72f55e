"""`penstock pipeline`: the jobs that run on Spark, and the maintenance jobs of store directories.

Each module adds its commands to `jobs.app`.
"""

from penstock.cli.commands.pipeline import export_import, jobs, offload, package, run

__all__ = ["app", "export_import", "jobs", "offload", "package", "run"]

app = jobs.app
