"""The page of a scene in a real browser: it draws, moves, obeys, and loads nothing."""

import html
import json
import re
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from jaxdyn.model import load, neutral
from jaxdyn.viz import Scene

WIDTH, HEIGHT = 800, 500
SWITCHES = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
WEBGL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


@pytest.fixture(scope="module")
def scene():
    """A quadruped that hops, its ghost, forces, a trace, and all the rest."""
    model = load("quadruped", root="floating")
    t = np.linspace(0, 1, 101)
    q = np.tile(np.asarray(neutral(model)), (101, 1))
    q[:, 2] = 0.45 + 0.2 * np.sin(np.pi * t)
    q[:, 8::3], q[:, 9::3] = 0.6, -1.2
    feet = np.array([[0.2, 0.15, 0], [0.2, -0.15, 0], [-0.2, 0.15, 0], [-0.2, -0.15, 0]])
    forces = np.zeros((101, 4, 3))
    forces[:, :, 2] = 40 + 40 * np.cos(2 * np.pi * t)[:, None]
    scene = Scene("Hop <1>", subtitle="a & b", autoplay=False)
    scene.add_robot(model, q, times=t, name="quadruped")
    scene.add_robot(model, q + 0.3 * np.eye(model.nq)[1], times=t, name="ghost", opacity=0.3, color="blue")
    scene.add_contact_forces(np.tile(feet, (101, 1, 1)), forces, times=t)
    scene.add_trace(robot="quadruped", body=model.body_names[0]).add_label("base", robot="quadruped")
    scene.add_readout("height", q[:, 2], times=t, unit="m").add_time_stamp(0.5, "apex").add_ground()
    return scene


@pytest.fixture(scope="module")
def view(browser_path, scene, tmp_path_factory):
    """`view(fragment)` opens the page and gives its state, its picture and what the browser said."""
    folder = tmp_path_factory.mktemp("page")
    text = scene.to_html()
    count = iter(range(1000))

    def open_page(fragment="", page=text, switches=WEBGL, script="", milliseconds=3000):
        k = next(count)
        path, picture = folder / f"{k}.html", folder / f"{k}.png"
        path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        done = subprocess.run(
            [browser_path, *SWITCHES, *switches, f"--user-data-dir={folder / f'profile{k}'}", f"--window-size={WIDTH},{HEIGHT}",
             f"--virtual-time-budget={milliseconds}", f"--screenshot={picture}", "--dump-dom", f"{path.as_uri()}#{fragment}"],
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        image = pytest.importorskip("matplotlib.image").imread(picture)[..., :3]
        found = {}
        for name in ("jaxdyn", "seen"):
            match = re.search(rf'<html[^>]* data-{name}="([^"]*)"', done.stdout)
            found[name] = json.loads(html.unescape(match[1])) if match else None
        # what the driver says about the screenshot is not ours
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "GL Driver Message" not in line]
        return SimpleNamespace(state=found["jaxdyn"], seen=found["seen"], image=image, console=console, dom=done.stdout)

    return open_page


@pytest.fixture(scope="module")
def browser_path(request):
    return request.getfixturevalue("browser")


@pytest.fixture(scope="module")
def middle(view):
    return view("t=0.5")


def colours(image):
    """Number of distinct colours."""
    return len(np.unique((image * 255).astype(int).reshape(-1, 3), axis=0))


def differing(a, b):
    """Share of the pixels that differ visibly."""
    return float(np.mean(np.abs(a - b).max(axis=-1) > 0.05))


def test_the_page_draws_the_scene_without_a_word_on_the_console(middle):
    assert middle.console == []
    state = middle.state
    assert state["ready"] and state["errors"] == [] and state["renderer"] == "webgl2"
    assert state["frames"] == 61 and state["draws"] >= 1 and state["time"] == 0.5 and not state["playing"]
    assert state["triangles"] > 5000
    assert middle.image.shape == (HEIGHT, WIDTH, 3) and colours(middle.image) > 3000
    # the robot hangs in the middle: orange legs, dark shanks
    center = middle.image[100:320, 230:560]
    assert ((center[..., 0] > 0.7) & (center[..., 2] < 0.35)).mean() > 0.003
    assert (center.max(axis=-1) < 0.35).mean() > 0.003


def test_texts_stand_in_the_page_as_they_were_given(middle):
    body = html.unescape(re.sub(r"<script.*?</script>", "", middle.dom, flags=re.S))
    for text in ("Hop <1>", "a & b", "apex", "contact forces", "peak 80 N", "0.650"):
        assert text in body


def test_another_time_gives_another_picture_and_the_same_time_the_same(view, middle):
    assert differing(view("t=0.5").image, middle.image) < 1e-3
    early = view("t=0.05")
    assert early.state["time"] == 0.05
    assert differing(early.image[:430], middle.image[:430]) > 0.01


def test_the_address_sets_camera_and_theme(view, middle):
    other = view("t=0.5&az=120&el=35&theme=dark")
    assert other.state["theme"] == "dark" and other.console == []
    assert other.image.mean() < 0.45 < middle.image.mean()


KEYS = """
const seen = {}, root = document.documentElement;
const press = (key, options = {}) => window.dispatchEvent(new KeyboardEvent('keydown', { key, ...options }));
/* Not with requestAnimationFrame: virtual time runs away from the frames. */
const next = async () => {
  await new Promise((done) => setTimeout(done, 100));
  jaxdyn.player.camera.advance(1);
  jaxdyn.player.draw();
};
const layer = (kind) => jaxdyn.layers.filter((l) => l.kind === kind).map((l) => l.visible);
const note = async (name, value) => { await next(); seen[name] = value(); };
(async () => {
  await note('start', () => jaxdyn.time);
  press('ArrowRight'); await note('right', () => jaxdyn.time);
  press('ArrowRight', { shiftKey: true }); await note('ten', () => jaxdyn.time);
  press('End'); await note('end', () => jaxdyn.time);
  const slider = document.getElementById('slider');
  slider.value = 0.25; slider.dispatchEvent(new Event('input')); await note('slider', () => jaxdyn.time);
  press('h'); press('c'); press('x');
  await note('layers', () => [layer('ghost'), layer('forces'), layer('frames'), layer('robot')].flat());
  document.querySelector('#legend button').click(); await note('click', () => layer('robot')[0]);
  document.querySelector('#legend button').click();
  press('t'); await note('theme', () => jaxdyn.theme);
  press('f'); await note('follow', () => jaxdyn.follow);
  press('+'); await note('speed', () => document.getElementById('speed').value);
  press('?'); await note('help', () => document.getElementById('keys').hidden); press('Escape');
  press('1'); press('r'); press('u'); press('l'); press('g');
  const eye = jaxdyn.player.camera.eye.join(), canvas = document.getElementById('canvas');
  const touch = { pointerId: 1, buttons: 1, bubbles: true };
  const at = (type, x, y, more) => canvas.dispatchEvent(new PointerEvent(type, { ...touch, clientX: x, clientY: y, ...more }));
  canvas.setPointerCapture = () => {};
  at('pointerdown', 300, 200); at('pointermove', 380, 230); at('pointerup', 380, 230, { buttons: 0 });
  await note('turned', () => eye !== jaxdyn.player.camera.eye.join());
  const far = jaxdyn.player.camera.goal.distance;
  canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: -120, cancelable: true }));
  await note('zoom', () => jaxdyn.player.camera.goal.distance / far);
  press(' '); await note('playing', () => jaxdyn.playing);
  press(' '); await note('paused', () => !jaxdyn.playing);
  await note('errors', () => jaxdyn.errors);
  root.dataset.seen = JSON.stringify(seen);
})();
"""


def test_keys_slider_legend_and_pointer_work(view):
    page = view("t=0", script=KEYS, milliseconds=300_000)
    seen = page.seen
    assert page.console == [] and seen["errors"] == []
    assert (seen["start"], seen["end"]) == (0, 1)
    assert seen["right"] == pytest.approx(1 / 60) and seen["ten"] == pytest.approx(11 / 60)
    assert seen["slider"] == pytest.approx(0.25)
    assert seen["layers"] == [False, False, True, True] and seen["click"] is False
    assert seen["theme"] == "dark" and seen["follow"] and seen["speed"] == "2" and seen["help"] is False
    assert seen["turned"] and seen["zoom"] == pytest.approx(np.exp(-0.156)) and seen["playing"] and seen["paused"]


PLAYING = """
const look = () => {
  if (jaxdyn.draws > 4 && jaxdyn.time > 0) {
    document.documentElement.dataset.seen = JSON.stringify(jaxdyn);
    jaxdyn.player.pause();
  } else requestAnimationFrame(look);
};
look();
"""


def test_it_plays_when_asked(view):
    page = view("play=1", script=PLAYING, milliseconds=300_000)
    assert page.console == [] and page.seen["errors"] == []
    assert page.seen["playing"] and page.seen["time"] > 0


def test_without_webgl_the_scene_is_painted(view, middle):
    page = view("t=0.5", switches=["--disable-3d-apis"])
    assert page.state["renderer"] == "canvas2d" and page.state["errors"] == []
    assert colours(page.image) > 300 and "No WebGL 2 here" in page.dom
    # much the same picture
    assert differing(page.image, middle.image) < 0.25


def test_a_scene_is_drawn_inside_the_frame_of_a_notebook(view, scene):
    frame = scene._repr_html_().replace("height:540px", "height:400px")
    around = f"<html><body style='margin:0;background:#fff'>{frame}</body></html>"
    # the sandboxed frame runs in a process of its own, whose real time the virtual clock does not wait for
    for milliseconds in (20_000, 100_000, 300_000):
        page = view(page=around, milliseconds=milliseconds)
        if colours(page.image[:400]) > 1000:
            break
    assert page.console == []
    assert colours(page.image[:400]) > 1000 and colours(page.image[410:]) == 1


TWO_FRAMES = """
const frames = [...document.querySelectorAll('iframe')];
const look = () => {
  const states = frames.map((f) => f.contentWindow.jaxdyn);
  if (states.every((s) => s && s.ready)) document.documentElement.dataset.seen = JSON.stringify(states);
  else setTimeout(look, 100);
};
look();
"""


def test_two_scenes_live_in_one_notebook(view, scene):
    # of one origin here, so that the page around them can look inside
    frame = (
        scene._repr_html_()
        .replace('sandbox="allow-scripts allow-downloads"', "")
        .replace("height:540px", "height:240px")
    )
    page = view(page=f"<html><body>{frame}{frame}</body></html>", script=TWO_FRAMES, milliseconds=300_000)
    assert page.console == []
    assert [(s["ready"], s["errors"], s["renderer"]) for s in page.seen] == [(True, [], "webgl2")] * 2


def test_a_fault_in_the_data_is_reported_in_the_page(view, scene):
    page = view(page=scene.to_html().replace('"duration":', '"length":'))
    assert page.state["errors"] and "could not be drawn" in page.dom


def test_the_clock_ends_where_the_times_do(view):
    model = load("pendulum")
    scene = Scene("later", autoplay=False)
    scene.add_robot(model, np.linspace(0, 1, 5)[:, None], times=2.0 + np.linspace(0, 1, 5))
    page = view("t=3", page=scene.to_html())
    assert page.state["time"] == 3.0
    assert "/ 3.000 s" in page.dom
