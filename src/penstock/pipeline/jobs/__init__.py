"""Jobs on a store directory, run by Spark; each is a function here and `penstock pipeline NAME`.

    from penstock import pipeline
    from penstock.pipeline import jobs

    print(jobs.export(pipeline.session(), "data", "parquet", topics=["orders"]))

Every job may be repeated, and may be killed at any moment and repeated. Each returns what it did,
counted, and checks the counts against the bounds of the store.
"""

from penstock.pipeline.jobs.exporting import ExportResult, ShardExport, export

__all__ = ["ExportResult", "ShardExport", "export"]
