"""Ways in which a page could reach what is outside: each is a page that tries one of them on a port of a canary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.environments.web.visits import script


@dataclass(frozen=True)
class Probe:
    """One way. In `body` and `headers`, CANARY is replaced by the canary's host and port, FILE by a file's address."""

    name: str
    tries: str
    body: str
    act: Literal["nothing", "click", "middle click"] = "nothing"
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    content_type: str = "text/html"
    plain: bool = True
    """In a browser without walls, the canary is reached (where it is not, Chromium itself does not allow it)."""


WORKER = "URL.createObjectURL(new Blob([{code!r}], {{type: 'text/javascript'}}))"


def worker(code: str) -> str:
    """The address of a worker's script, as JavaScript."""
    return WORKER.format(code=code)


PROBES = (
    # what the facts of 22 November were found with
    Probe("fetch", "`fetch`, with CORS, without, and `keepalive`", script("for (const o of [{}, {mode: 'no-cors'}, {keepalive: true, method: 'POST', body: 'x'}]) fetch('http://CANARY/', o).catch(() => 0)")),
    Probe("xhr", "`XMLHttpRequest`, synchronous and not", script("for (const a of [true, false]) try { const x = new XMLHttpRequest(); x.open('GET', 'http://CANARY/', a); x.send() } catch {}")),
    Probe("image", "`img`, `srcset`, a video with its poster, sound, SVG's `image`", '<img src="http://CANARY/1"><img srcset="http://CANARY/2 1x"><video poster="http://CANARY/3" src="http://CANARY/4" autoplay></video><audio src="http://CANARY/5" autoplay></audio><svg><image href="http://CANARY/6" width="9" height="9"/></svg>'),
    Probe("style", "`@import`, a style sheet of another origin, a background", '<style>@import "http://CANARY/1"; body { background: url(http://CANARY/2) }</style><link rel="stylesheet" href="http://CANARY/3"><p>A page.</p>'),
    Probe("font", "`@font-face` and `FontFace`", "<style>@font-face { font-family: f; src: url(http://CANARY/1) } p { font-family: f }</style>" + script("new FontFace('g', 'url(http://CANARY/2)').load().catch(() => 0)")),
    Probe("socket", "`WebSocket`", script("new WebSocket('ws://CANARY/')")),
    Probe("stun", "WebRTC with a STUN server and a TURN server over TCP", script("const c = new RTCPeerConnection({iceServers: [{urls: 'stun:CANARY'}, {urls: 'turn:CANARY?transport=tcp', username: 'u', credential: 'p'}]}); c.createDataChannel('d'); c.createOffer().then(o => c.setLocalDescription(o))")),
    Probe("events", "`EventSource`", script("new EventSource('http://CANARY/')")),
    Probe("beacon", "`navigator.sendBeacon`, at once and when the page is left", script("navigator.sendBeacon('http://CANARY/1', 'x'); addEventListener('pagehide', () => navigator.sendBeacon('http://CANARY/2', 'x'))")),
    Probe("form", "a form that is sent to another origin", '<form action="http://CANARY/" method="post"><button>Send</button></form>', act="click"),
    Probe("frame", "`iframe`", '<iframe src="http://CANARY/"></iframe>'),
    Probe("object", "`object` and `embed`", '<object data="http://CANARY/1" type="text/html"></object><embed src="http://CANARY/2" type="text/html">'),
    Probe("open", "`window.open`", '<button onclick="window.open(\'http://CANARY/\')">Open</button>', act="click"),
    Probe("blank", "a link with `target=_blank`", '<a href="http://CANARY/" target="_blank">Away</a>', act="click"),
    Probe("refresh", "`meta` refresh", '<meta http-equiv="refresh" content="0; url=http://CANARY/"><p>A page.</p>'),
    Probe("redirect", "an answer 303 to another origin", "", status=303, headers={"location": "http://CANARY/"}),
    Probe("hints", "`preconnect`, `dns-prefetch`, `prefetch`, `preload`, `modulepreload`, as elements and as `Link` headers", '<link rel="preconnect" href="http://CANARY"><link rel="dns-prefetch" href="http://CANARY"><link rel="prefetch" href="http://CANARY/1"><link rel="preload" as="fetch" href="http://CANARY/2" crossorigin><link rel="modulepreload" href="http://CANARY/3"><p>A page.</p>', headers={"link": '<http://CANARY/4>; rel=preload; as=image, <http://CANARY>; rel=preconnect'}),
    Probe("service-worker", "a service worker that fetches", script("navigator.serviceWorker.register('/worker.js').catch(() => 0)")),
    # ours
    Probe("script", "a script, a module and a dynamic import of another origin", '<script src="http://CANARY/1"></script><script type="module">import "http://CANARY/2"</script>' + script("import('http://CANARY/3').catch(() => 0)")),
    Probe("worker", "workers, also shared ones, with `importScripts`, `fetch` and `WebSocket`", script(f"const u = {worker('try { importScripts(`http://CANARY/1`) } catch {} fetch(`http://CANARY/2`).catch(() => 0); new WebSocket(`ws://CANARY/3`)')}; new Worker(u); new SharedWorker(u)")),
    Probe("location", "`location.href`", script("location.href = 'http://CANARY/'")),
    Probe("localhost", "other names of this machine: `localhost`, `0.0.0.0`, `[::ffff:127.0.0.1]`", script("for (const h of ['localhost', '0.0.0.0', '[::ffff:127.0.0.1]', '127.1']) fetch('http://' + h + ':PORT/', {mode: 'no-cors'}).catch(() => 0)")),
    Probe("ping", "a link's `ping`", '<a href="#here" ping="http://CANARY/">Here</a>', act="click"),
    Probe("middle", "a link, clicked with the middle button", '<a href="http://CANARY/">Away</a>', act="middle click"),
    Probe("speculation", "speculation rules: prefetch and prerender", '<script type="speculationrules">{"prefetch": [{"urls": ["http://CANARY/1"], "eagerness": "immediate"}], "prerender": [{"urls": ["http://CANARY/2"], "eagerness": "immediate"}]}</script><p>A page.</p>'),
    Probe("report", "reports of the content security policy: `report-uri`, `Reporting-Endpoints`, `Report-To` with network error logging", '<iframe src="https://elsewhere.test/"></iframe>', headers={"content-security-policy": "frame-src 'none'; report-uri http://CANARY/1", "reporting-endpoints": 'r="http://CANARY/2"', "report-to": '{"group": "r", "max_age": 99, "endpoints": [{"url": "http://CANARY/3"}]}', "nel": '{"report_to": "r", "max_age": 99, "success_fraction": 1.0}'}),
    Probe("transport", "`WebTransport` (QUIC)", script("new WebTransport('https://CANARY/').ready.catch(e => 0)"), plain=False),
    Probe("inner", "what a frame without an address has of its own: `fetch`, `WebSocket`, `RTCPeerConnection`, `WebTransport`", script("const f = document.createElement('iframe'); document.body.append(f); const w = f.contentWindow; w.fetch('http://CANARY/', {mode: 'no-cors'}).catch(() => 0); try { new w.WebSocket('ws://CANARY/') } catch {} try { new w.WebTransport('https://CANARY/').ready.catch(() => 0) } catch {} try { const c = new w.RTCPeerConnection({iceServers: [{urls: 'stun:CANARY'}]}); c.createDataChannel('d'); c.createOffer().then(o => c.setLocalDescription(o)) } catch {}")),
    Probe("srcdoc", "frames with `srcdoc`, `data:` and `blob:` that fetch", "<iframe srcdoc=\"<img src='http://CANARY/1'>\"></iframe><iframe src=\"data:text/html,<img src='http://CANARY/2'>\"></iframe>" + script("const f = document.createElement('iframe'); f.src = URL.createObjectURL(new Blob(['<img src=http://CANARY/3>'], {type: 'text/html'})); document.body.append(f)")),
    Probe("blob", "the tab goes to a `blob:` address that fetches", script("location.href = URL.createObjectURL(new Blob(['<img src=http://CANARY/>'], {type: 'text/html'}))")),
    Probe("data", "the tab goes to a `data:` address that fetches", script("location.href = 'data:text/html,<img src=http://CANARY/>'"), plain=False),
    Probe("data-open", "a new window with a `data:` address that fetches", '<button onclick="window.open(`data:text/html,<img src=http://CANARY/>`)">Open</button>', act="click", plain=False),
    Probe("written", "a new window whose document the page writes", '<button onclick="const w = window.open(`about:blank`); w.document.write(`<p>x<img src=http://CANARY/>`); w.document.close()">Open</button>', act="click", plain=False),
    Probe("javascript", "a link with `javascript:` that fetches", '<a href="javascript:void fetch(`http://CANARY/`, {mode: `no-cors`})">Run</a>', act="click"),
    Probe("file", "`file:` by link, frame, image, `fetch` and `location`", '<img src="FILE"><iframe src="FILE" id="frame"></iframe>' + script("setTimeout(() => document.getElementById('frame').remove(), 100); fetch('FILE').catch(() => 0); location.href = 'FILE'"), plain=False),
    Probe("file-link", "a link to a `file:` address in a new window", '<a href="FILE" target="_blank">File</a>', act="click", plain=False),
    Probe("download", "a download of another origin", '<a href="http://CANARY/file" download>Load</a>', act="click"),
    Probe("attachment", "an answer that is a download", "x", headers={"content-disposition": "attachment; filename=x.bin"}, content_type="application/octet-stream", plain=False),
    Probe("protocol", "addresses of other programs: `mailto:`, `ftp:`, `ssh:`, `chrome:`, one of the page's own", script("for (const s of ['mailto:a@CANARY', 'ftp://CANARY/', 'ssh://CANARY/', 'web+x://CANARY/', 'chrome://version']) { const f = document.createElement('iframe'); f.src = s; document.body.append(f); setTimeout(() => f.remove(), 100) } try { navigator.registerProtocolHandler('web+x', '/?%s') } catch {}"), plain=False),
    Probe("icon", "the page's icon and manifest", '<link rel="icon" href="http://CANARY/1"><link rel="manifest" href="http://CANARY/2"><p>A page.</p>', plain=False),
    Probe("later", "`fetchLater`, a payment's manifest, an identity provider's", script("try { fetchLater('http://CANARY/1', {activateAfter: 0}) } catch {} try { new PaymentRequest([{supportedMethods: 'https://CANARY/2'}], {total: {label: 'x', amount: {currency: 'EUR', value: '1'}}}).canMakePayment().catch(() => 0) } catch {} try { navigator.credentials.get({identity: {providers: [{configURL: 'https://CANARY/3', clientId: '1'}]}}).catch(() => 0) } catch {}")),
    Probe("xslt", "a frame with XML that has a style sheet, and an image in SVG", script("const f = document.createElement('iframe'); f.src = URL.createObjectURL(new Blob(['<?xml-stylesheet type=`text/xsl` href=`http://CANARY/1`?><svg xmlns=`http://www.w3.org/2000/svg`><image href=`http://CANARY/2` width=`9` height=`9`/></svg>'.replaceAll('`', String.fromCharCode(34))], {type: 'text/xml'})); document.body.append(f); setTimeout(() => f.remove(), 100)"), plain=False),
)  # fmt: skip
