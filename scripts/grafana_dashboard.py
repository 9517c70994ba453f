#!/usr/bin/env python
"""Write the Grafana dashboard of Rayscend: scripts/grafana_dashboard.py [FILE]; else to stdout.

One panel for each metric in `serve_apps/metrics.py`, over what Ray exports. Import it in Grafana,
or write it into the folder that Ray provisions: `<session>/metrics/grafana/dashboards/`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from serve_apps.metrics import METRICS, Metric

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"seconds": "s", "ratio": "percentunit"}  # Grafana's names; all else is counted


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, with a variable for the data source."""
    return {
        "uid": "rayscend",
        "title": "Rayscend",
        "tags": ["ray", "rayscend"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(place, metric) for place, metric in enumerate(METRICS)],
    }


def _panel(place: int, metric: Metric) -> dict[str, Any]:
    row, column = divmod(place, _COLUMNS)
    unit = _UNITS.get(metric.unit, "short")
    return {
        "id": place + 1,
        "title": metric.panel,
        "description": metric.meaning,
        "type": "timeseries",
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(metric.expressions().items())
        ],
    }


def main() -> None:
    text = json.dumps(dashboard(), indent=2) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
