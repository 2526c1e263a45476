"""Trees as LightGBM writes them, asked for one call or for many.

LightGBM's Python takes 80 us and more to ask for one row, and its threads wait for each other: 16 ms beside other work
on two cores. Its C interface has a call for one row that takes 3 us, in this thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

PARAMETERS: Final = b"num_threads=1"
NORMAL: Final = 0
"""LightGBM's C_API_PREDICT_NORMAL."""
FLOAT64: Final = 1
"""LightGBM's C_API_DTYPE_FLOAT64."""


class TreesError(Exception):
    """The trees cannot be used. `str()` says why."""


class Trees:
    def __init__(self, lightgbm: Any, text: str, columns: int) -> None:
        """lightgbm: the module. columns: number of features. TreesError."""
        try:
            self._booster = lightgbm.Booster(model_str=text)
        except lightgbm.basic.LightGBMError as error:
            raise TreesError(str(error)) from error
        if self._booster.num_feature() != columns:
            raise TreesError(f"they have {self._booster.num_feature()} features, not {columns}")
        self._row = (ctypes.c_double * columns)()
        self._length, self._score = ctypes.c_int64(), ctypes.c_double()
        self._fast = ctypes.c_void_p()
        self._library = _library_of(lightgbm)
        if self._library is not None and hasattr(self._booster, "_handle"):
            first = every = 0
            self._library.LGBM_BoosterPredictForMatSingleRowFastInit(
                self._booster._handle, NORMAL, first, every, FLOAT64, columns, PARAMETERS, ctypes.byref(self._fast)
            )

    def __del__(self) -> None:
        if getattr(self, "_fast", None):
            self._library.LGBM_FastConfigFree(self._fast)

    def one(self, row: Sequence[float]) -> float:
        """Returns the score of one row."""
        self._row[:] = row  # type: ignore[call-overload]
        if self._fast:
            failed = self._library.LGBM_BoosterPredictForMatSingleRowFast(
                self._fast, self._row, ctypes.byref(self._length), ctypes.byref(self._score)
            )
            if not failed:
                return self._score.value
        return float(self.all([list(row)])[0])

    def all(self, table: Any) -> Any:
        """Returns the scores of all rows."""
        return self._booster.predict(table, num_threads=1)


def _library_of(lightgbm: Any) -> Any:
    """Returns LightGBM's C interface; None where this version's Python keeps it elsewhere."""
    library = getattr(lightgbm.basic, "_LIB", None)
    return library if hasattr(library, "LGBM_BoosterPredictForMatSingleRowFastInit") else None
