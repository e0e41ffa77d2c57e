"""A report as one HTML file, to be read on any screen; no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from coregrad_conformance import report as reports
from coregrad_conformance.certificate import (
    EMULATED,
    LEGEND,
    REMARK,
    SHOWN,
    caveats,
    facts,
    first_line,
    headline,
    instructions,
    is_certificate,
    is_emulated,
    matrix,
    standing,
    tallies,
)


def page(report: Mapping[str, Any], digest: str) -> str:
    """CERTIFICATE.html or REPORT.html: one file, no script, nothing loaded from elsewhere."""
    kind = "Certificate of conformance" if is_certificate(report) else "Conformance report"
    state = standing(report)
    title = html.escape(headline(report))
    body = [
        "<header>",
        f'<p class="kind">coregrad · {kind}</p>',
        f"<h1>{html.escape(_subject(report))}</h1>",
        f'<p class="device">{html.escape(_device_line(report))}</p>',
        f'<p class="seal {state}">{html.escape(_seal(report))}</p>',
        f'<p class="emulated">{EMULATED}</p>' if is_emulated(report) else "",
        "</header>",
        _html_caveats(report),
        _html_tallies(report),
        "<h2>Worst error by op and dtype</h2>",
        _html_matrix(report),
        f'<p class="small">{_emphasised(LEGEND)}</p>',
        _html_failures(report),
        "<h2>Waivers</h2>",
        _html_waivers(report),
        "<h2>What was tested</h2>",
        _html_facts(report),
        "<h2>To find the same</h2>",
        f"<pre>{html.escape(instructions(report))}</pre>",
        f'<p class="small">{_emphasised(REMARK)}</p>',
    ]
    head = HEAD.replace("TITLE", title).replace("STYLE", STYLE)
    foot = f'<footer>sha256(report.json) = <code class="hash">{digest}</code></footer>'
    return "\n".join([head, *filter(None, body), f"{foot}</main></body></html>"]) + "\n"


def _subject(report: Mapping[str, Any]) -> str:
    backend = report["backend"]
    return f"{backend['distribution']} {backend['version']}".strip()


def _device_line(report: Mapping[str, Any]) -> str:
    device = report["device"]
    words = [device["name"]]
    words += [device["title"]] if device["title"] != device["name"] else []
    words += [device["driver"]] if device["driver"] else []
    return " · ".join([*words, f"contract {report['contract']['version']}"])


def _seal(report: Mapping[str, Any]) -> str:
    words = {
        "certified": "✓ certified",
        "provisional": "✓ passed, provisional",
        "failed": "✗ failed",
        "filtered": "a part of the rows; not a certificate",
    }
    return f"{report['level']} {words[standing(report)]}"


def _html_caveats(report: Mapping[str, Any]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in caveats(report))
    return f'<ul class="caveats">{items}</ul>' if items else ""


def _html_tallies(report: Mapping[str, Any]) -> str:
    cards = []
    for level, well, passed, total, rest in tallies(report):
        share = 100 * passed / total if total else 0
        cards.append(
            f'<div class="card {well}"><b>{html.escape(level)}</b>'
            f"<span>{passed} <small>of {total} rows</small></span>"
            f'<i class="bar"><i style="width:{share:.1f}%"></i></i>'
            f"<small>{html.escape(rest) or 'nothing skipped'}</small></div>"
        )
    return f'<section class="cards">{"".join(cards)}</section>'


def _html_matrix(report: Mapping[str, Any]) -> str:
    dtypes, rows = matrix(report)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in dtypes)
    lines = [f'<tr><th scope="col">op</th>{head}</tr>']
    for op, cells in rows:
        tds = "".join(f'<td class="{_class(text)}">{html.escape(text)}</td>' for text in cells)
        lines.append(f'<tr><th scope="row"><code>{html.escape(op)}</code></th>{tds}</tr>')
    return f'<div class="wide"><table class="matrix">{"".join(lines)}</table></div>'


def _class(text: str) -> str:
    if not text:
        return "none"
    if text == "FAIL":
        return "bad"
    return text if text in ("exact", "bound", "absent", "waived") else "ulp"


def _html_failures(report: Mapping[str, Any]) -> str:
    bad = [result for result in reports.results_of(report) if not result.ok]
    if not bad:
        return ""
    items = "".join(
        f"<li><code>{html.escape(r.id)}</code> <b>{r.status}</b> "
        f"{html.escape(first_line(r.detail))}</li>"
        for r in bad[:SHOWN]
    )
    more = f"<li>and {len(bad) - SHOWN} more</li>" if len(bad) > SHOWN else ""
    return f'<h2>Rows that failed</h2><ul class="rows">{items}{more}</ul>'


def _html_waivers(report: Mapping[str, Any]) -> str:
    items = "".join(
        f"<li><code>{html.escape(w['id'])}</code> <b>{html.escape(w['kind'])}</b> "
        f'{html.escape(w["reason"])} <a href="{html.escape(w["url"])}">more</a>, '
        f"until {html.escape(w['expires'])}</li>"
        for w in report["waivers"]
    )
    return f'<ul class="rows">{items}</ul>' if items else "<p>None.</p>"


def _html_facts(report: Mapping[str, Any]) -> str:
    items = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in facts(report)
    )
    return f"<dl>{items}</dl>"


def _emphasised(text: str) -> str:
    """Text with *words* and `code` as HTML."""
    parts = html.escape(text).split("*")
    text = "".join(f"<em>{p}</em>" if i % 2 else p for i, p in enumerate(parts))
    parts = text.split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))


HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>TITLE</title>
<style>
STYLE</style></head>
<body><main>"""

STYLE = """:root{--ink:#1d2430;--soft:#5b6676;--line:#e2e6ec;--page:#f4f6f9;--sheet:#fff;
--good:#13795b;--good-bg:#e5f5ef;--warn:#8a5a00;--warn-bg:#fff3d6;--bad:#b3261e;--bad-bg:#fde8e6;
--ulp:#e9effa}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#98a3b3;--line:#2c3440;--page:#10141a;
--sheet:#181d25;--good:#5fd0a8;--good-bg:#12332a;--warn:#f0c060;--warn-bg:#382a0c;--bad:#ff8f86;
--bad-bg:#40191a;--ulp:#1f2a3d}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:58rem;margin:0 auto;padding:2.5rem 2.25rem;background:var(--sheet)}
@media(min-width:62rem){main{margin:2rem auto;border:1px solid var(--line);border-radius:14px}}
@media(max-width:40rem){main{padding:1.5rem 1rem}}
.kind{margin:0;color:var(--soft);font-size:.8rem;letter-spacing:.08em;text-transform:uppercase}
h1{margin:.2rem 0 0;font-size:1.9rem;line-height:1.2;letter-spacing:-.01em}
h2{margin:2.25rem 0 .75rem;font-size:1.1rem}
.device{margin:.3rem 0 1rem;color:var(--soft)}
.seal{display:inline-block;margin:0;padding:.35rem .9rem;border-radius:99px;font-weight:650}
.seal.certified{color:var(--good);background:var(--good-bg)}
.seal.provisional,.seal.filtered{color:var(--warn);background:var(--warn-bg)}
.seal.failed{color:var(--bad);background:var(--bad-bg)}
.emulated{margin:1rem 0 0;padding:.7rem 1rem;border-radius:10px;font-weight:650;
background:var(--bad-bg);color:var(--bad)}
.caveats{margin:1.25rem 0 0;padding:.7rem 1rem .7rem 2rem;border-radius:10px;font-size:.9rem;
background:var(--warn-bg);color:var(--warn)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:.9rem;
margin-top:1.5rem}
.card{display:grid;gap:.25rem;padding:.9rem 1rem;border:1px solid var(--line);border-radius:10px}
.card span{font-size:1.5rem;font-weight:650}
.card small{font-weight:400;font-size:.82rem;color:var(--soft)}
.bar,.bar i{display:block;height:5px;border-radius:3px;background:var(--line)}
.card.pass .bar i{background:var(--good)}
.card.fail .bar i{background:var(--bad)}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:10px}
.matrix{width:100%;border-collapse:separate;border-spacing:0;font-size:.8rem;font-variant-numeric:tabular-nums}
.matrix th,.matrix td{padding:.34rem .5rem;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}
.matrix tr:last-child th,.matrix tr:last-child td{border-bottom:0}
.matrix th{font-weight:600;color:var(--soft)}
.matrix th:first-child{position:sticky;left:0;background:var(--sheet);text-align:left;
color:var(--ink)}
.exact,.bound{color:var(--good)}
.absent,.none{color:var(--soft)}
.ulp{background:var(--ulp)}
.waived{color:var(--warn);background:var(--warn-bg)}
.bad{color:var(--bad);background:var(--bad-bg);font-weight:650}
.small{font-size:.84rem;color:var(--soft)}
.rows{padding-left:1.1rem;font-size:.9rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:7.5rem 1fr;gap:.35rem 1rem;margin:0;font-size:.88rem}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
@media(max-width:40rem){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.6rem}}
pre{margin:0;padding:.8rem 1rem;overflow-x:auto;border-radius:10px;background:var(--page);
font-size:.84rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{margin-top:2.25rem;padding-top:1rem;border-top:1px solid var(--line);font-size:.8rem;
color:var(--soft)}
.hash{overflow-wrap:anywhere}
@media print{body{background:#fff}main{border:0;margin:0;max-width:none}}
"""
