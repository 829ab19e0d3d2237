"""The tables behind the embedded tasks: read from scikit-learn and bokeh_sampledata, checked by sha256.

`TABLES` maps a table's name to its reader and its source files. A file that is missing or has changed since
`sources.json` was written raises `SourceChanged`, and the suite goes on without the tasks of that table.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from mappa_envs.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SKLEARN = "sklearn.datasets.data"
BOKEH = "bokeh_sampledata._data"


class SourceChanged(DataError):
    """A source file is missing or is not the one that the suite was made from."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table: how to read it, and the files of `package` that it needs."""

    package: str
    files: tuple[str, ...]
    read: Callable[[], pd.DataFrame]


def source_bytes(package: str, file: str) -> bytes:
    """The decompressed content of a data file; `x` may be stored as `x.gz`. Raises `SourceChanged`."""
    distribution = package.split(".")[0].replace("_", "-").replace("sklearn", "scikit-learn")
    try:
        folder = resources.files(package)
    except ModuleNotFoundError:
        raise SourceChanged(f"{distribution} is not installed: pip install {distribution}") from None
    for name in (file, file + ".gz"):
        path = folder / name
        if path.is_file():
            data = path.read_bytes()
            return gzip.decompress(data) if name.endswith(".gz") else data
    raise SourceChanged(f"{distribution} has no file {file}: install the version named in pyproject.toml")


def checksums() -> dict[str, list[str]]:
    """By `package/file`, the sha256 of each decompressed content that builds the same tasks.

    scikit-learn, for one, wrote some numbers of a file shorter between 1.5 and 1.9.
    """
    text = resources.files("mappa_envs.dsbench").joinpath("sources.json").read_text()
    return dict(json.loads(text))


def check_table(name: str) -> None:
    """Raise `SourceChanged`, naming the file, unless the table's sources are those of `sources.json`."""
    table, known = TABLES[name], checksums()
    for file in table.files:
        key = f"{table.package}/{file}"
        if hashlib.sha256(source_bytes(table.package, file)).hexdigest() not in known.get(key, ()):
            raise SourceChanged(f"{key} has changed: install the version named in pyproject.toml")


def _sklearn(loader: str, **options: bool) -> Any:
    from sklearn import datasets

    return getattr(datasets, loader)(as_frame=True, **options)


def _bokeh(file: str, **options: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(io.BytesIO(source_bytes(BOKEH, file)), **options)


def _iris() -> pd.DataFrame:
    bunch = _sklearn("load_iris")
    frame = bunch.frame.rename(columns=lambda name: name.replace(" (cm)", "").replace(" ", "_"))
    return frame.assign(species=[str(bunch.target_names[i]) for i in frame["target"]]).drop(columns="target")


def _wine() -> pd.DataFrame:
    frame = _sklearn("load_wine").frame
    frame.columns = [name.replace("/", "_").replace(".", "_") for name in frame.columns]
    return frame.assign(cultivar=["cultivar_" + "ABC"[i] for i in frame["target"]]).drop(columns="target")


def _breast_cancer() -> pd.DataFrame:
    frame = _sklearn("load_breast_cancer").frame
    frame.columns = [name.replace(" ", "_") for name in frame.columns]
    return frame.assign(malignant=1 - frame["target"]).drop(columns="target")


def _diabetes() -> pd.DataFrame:
    frame = _sklearn("load_diabetes", scaled=False).frame
    sex = frame["sex"].map({1.0: "group_1", 2.0: "group_2"})
    return frame.assign(sex=sex).rename(columns={"target": "progression"})


def _digits() -> pd.DataFrame:
    return _sklearn("load_digits").frame.rename(columns={"target": "digit"})


def _auto_mpg() -> pd.DataFrame:
    frame = _bokeh("auto-mpg.csv")
    return frame.assign(origin=frame["origin"].map({1: "USA", 2: "Europe", 3: "Japan"}))


def _epa() -> pd.DataFrame:
    frame = _bokeh("auto-mpg2.csv", index_col=0)
    return frame.rename(columns={"class": "vehicle_class", "fl": "fuel"})


def _superstore() -> pd.DataFrame:
    frame = _bokeh("SampleSuperstore.csv")
    frame.columns = [name.lower().replace(" ", "_").replace("-", "_") for name in frame.columns]
    return frame.drop(columns="country").drop_duplicates()


def _gapminder() -> pd.DataFrame:
    regions = _bokeh("gapminder_regions.csv").rename(columns={"Country": "country", "Group": "region"})
    return _bokeh("gapminder.csv").merge(regions[["country", "region"]], on="country", how="left")


def _cycling() -> pd.DataFrame:
    import pandas as pd

    frame = _bokeh("cycling.csv", index_col=0)
    seconds = pd.to_timedelta(frame.pop("time")).dt.total_seconds()
    return frame.drop(columns=["position_lat", "position_long"]).assign(
        time_s=seconds,
        d_altitude=frame["altitude"].diff().fillna(0),
        d_speed=frame["speed"].diff().fillna(0),
    )


def _sea_temperature() -> pd.DataFrame:
    frame = _bokeh("sea_surface_temperature.csv")
    frame.columns = ["time_utc", "temperature_celsius"]
    return frame


def _glucose() -> pd.DataFrame:
    import pandas as pd

    frame = _bokeh("CGM.csv")
    return frame.assign(isig=pd.to_numeric(frame["isig"], errors="coerce"))


def _emissions() -> pd.DataFrame:
    frame = _bokeh("emissions.csv")
    return frame.assign(year=frame["year"].astype(int))


def _movies() -> pd.DataFrame:
    import pandas as pd

    connection = sqlite3.connect(":memory:")
    connection.deserialize(source_bytes(BOKEH, "movies.db"))
    omdb = pd.read_sql("select * from omdb order by ID", connection)
    tomatoes = pd.read_sql(
        "select ID, Rating as critics_rating, Meter as tomatometer, Reviews, BoxOffice, Production"
        " from tomatoes order by ID",
        connection,
    )
    connection.close()
    spare = ["imdbID", "imdbRating", "imdbVotes", "lastUpdated", "Writer", "Cast"]
    frame = omdb.drop(columns=spare).merge(tomatoes, on="ID").drop(columns="ID")
    frame = frame.rename(columns=str.lower).rename(columns={"rating": "mpaa"})
    return frame.replace("", None).infer_objects()


def _unemployment() -> pd.DataFrame:
    import pandas as pd

    raw = _bokeh("unemployment09.csv", header=None)
    place = raw[3].str.rsplit(", ", n=1)
    return pd.DataFrame(
        {
            "county": place.str[0],
            "state": place.str[1],
            "state_fips": raw[1],
            "labor_force": pd.to_numeric(raw[4].astype(str).str.replace(",", "")),
            "unemployment_rate": raw[8],
        }
    )


def _plain(file: str) -> Table:
    return Table(package=BOKEH, files=(file,), read=lambda: _bokeh(file))


TABLES: dict[str, Table] = {
    "iris": Table(package=SKLEARN, files=("iris.csv",), read=_iris),
    "wine": Table(package=SKLEARN, files=("wine_data.csv",), read=_wine),
    "breast_cancer": Table(package=SKLEARN, files=("breast_cancer.csv",), read=_breast_cancer),
    "diabetes": Table(
        package=SKLEARN, files=("diabetes_data_raw.csv", "diabetes_target.csv"), read=_diabetes
    ),
    "digits": Table(package=SKLEARN, files=("digits.csv",), read=_digits),
    "titanic": _plain("titanic_all.csv"),
    "penguins": _plain("penguins.csv"),
    "auto_mpg": Table(package=BOKEH, files=("auto-mpg.csv",), read=_auto_mpg),
    "epa": Table(package=BOKEH, files=("auto-mpg2.csv",), read=_epa),
    "glass": _plain("forensic_glass.csv"),
    "superstore": Table(package=BOKEH, files=("SampleSuperstore.csv",), read=_superstore),
    "gapminder": Table(package=BOKEH, files=("gapminder.csv", "gapminder_regions.csv"), read=_gapminder),
    "cycling": Table(package=BOKEH, files=("cycling.csv",), read=_cycling),
    "sea_temperature": Table(package=BOKEH, files=("sea_surface_temperature.csv",), read=_sea_temperature),
    "glucose": Table(package=BOKEH, files=("CGM.csv",), read=_glucose),
    "emissions": Table(package=BOKEH, files=("emissions.csv",), read=_emissions),
    "movies": Table(package=BOKEH, files=("movies.db",), read=_movies),
    "unemployment": Table(package=BOKEH, files=("unemployment09.csv",), read=_unemployment),
}
