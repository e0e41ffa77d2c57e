"""The files of a run: report.json, its pages and a badge; it writes them and takes them back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coregrad_conformance import report as reports
from coregrad_conformance.certificate import is_certificate, markdown, standing
from coregrad_conformance.page import page

BADGE = "badge.json"
PAGES = ("CERTIFICATE.md", "CERTIFICATE.html", "REPORT.md", "REPORT.html")


def pages(report: Mapping[str, Any], digest: str) -> dict[str, str]:
    """Every page that belongs to a report, by file name."""
    stem = "CERTIFICATE" if is_certificate(report) else "REPORT"
    return {
        f"{stem}.md": markdown(report, digest),
        f"{stem}.html": page(report, digest),
        BADGE: json.dumps(badge(report), ensure_ascii=False) + "\n",
    }


def retract(folder: Path) -> None:
    """Remove what an earlier run has left in a folder."""
    for name in (*PAGES, BADGE, reports.NAME):
        (folder / name).unlink(missing_ok=True)


def publish(folder: Path, report: Mapping[str, Any]) -> list[Path]:
    """Write report.json and its pages; returns their paths."""
    content = reports.text(report)
    files = {reports.NAME: content, **pages(report, reports.sha256(content))}
    for name, body in files.items():
        reports.write(folder / name, body)
    return [folder / name for name in files]


def badge(report: Mapping[str, Any]) -> dict[str, Any]:
    """For a badge service: the JSON that its endpoint badges take."""
    waived = len(report["waivers"])
    mark = "✓" if report["verdict"]["passed"] else "✗"
    words = [report["level"], mark]
    words += [f"{waived} waived"] if waived else []
    words += [standing(report)] if standing(report) != "certified" else []
    colours = {"certified": "brightgreen", "provisional": "yellow", "filtered": "lightgrey"}
    return {
        "schemaVersion": 1,
        "label": f"coregrad {report['contract']['version']}",
        "message": " ".join(words),
        "color": colours.get(standing(report), "red"),
    }
