"""The storage contract as tests, for every engine, also one of a third party.

    import pytest
    from penstock.testing.conformance import EngineConformance, EngineHarness

    class MyHarness(EngineHarness):
        ...

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> EngineHarness:
            return MyHarness(tmp_path)

The class inherits a test for every sentence of `penstock.engine.contract`. What an engine may lack
is in its `Capabilities`; the tests of what it lacks are skipped, and nothing else is. Needs pytest.
"""

import pytest

for _module in ("cases", "harness"):
    # So that a failed assertion in them shows its values, as in any test module.
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from penstock.testing.conformance.harness import EngineHarness  # noqa: E402 after the rewrite
from penstock.testing.conformance.suite import EngineConformance  # noqa: E402 after the rewrite

__all__ = ["EngineConformance", "EngineHarness"]
