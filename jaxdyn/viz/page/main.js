/* Puts the page together: chooses a renderer, runs the clock, and reports its state in window.jaxdyn and in the data-jaxdyn attribute of <html>
   (for tests). The address may set things: #t=0.5 (time, paused), az, el (degrees), dist, theme, follow, play, renderer=canvas. */

class Player {
  constructor(world, canvas, options) {
    this.world = world;
    this.canvas = canvas;
    [this.start, this.end] = world.data.duration;
    this.speed = world.data.speed;
    this.time = this.start;
    this.playing = false;
    this.follow = false;
    this.draws = 0;
    this.quality = 1;
    this.slow = 0;
    this.renderer = this.chooseRenderer(options.renderer);
    const c = world.data.camera;
    this.camera = new Camera({ azimuth: c.azimuth, elevation: c.elevation, distance: 1, target: c.target || world.center });
    for (const [key, name] of [['az', 'azimuth'], ['el', 'elevation']]) if (options[key] !== undefined) this.camera.home[name] = Number(options[key]) * Math.PI / 180;
    this.distance = Number(options.dist) || c.distance;
    this.setTheme(options.theme === 'dark' || options.theme === 'light' ? options.theme : world.data.theme);
    this.interface = new Interface(this);
    if (this.renderer) this.renderer.attach(world);
    this.resize();
    this.home(true);
    this.camera.listen(canvas, () => { this.touched = true; this.invalidate(); });
    canvas.addEventListener('dblclick', () => this.home());
    /* At once: a canvas is blank after its size has changed, until something is drawn. */
    new ResizeObserver(() => { if (this.resize()) { if (!this.touched) this.home(true); this.draw(); } }).observe(canvas);
    if ('IntersectionObserver' in window) {
      new IntersectionObserver((entries) => {
        const hidden = !entries[entries.length - 1].isIntersecting;
        if (this.hidden && !hidden) this.invalidate();
        this.hidden = hidden;
      }).observe(canvas);
    }
    canvas.addEventListener('webglcontextlost', (event) => event.preventDefault());
    canvas.addEventListener('webglcontextrestored', () => { this.renderer.build(); this.invalidate(); });
  }

  chooseRenderer(wish) {
    const attempt = (Kind) => {
      try { return Kind.create(this.canvas); } catch (error) { report(error); return null; }
    };
    const renderer = (wish === 'canvas' ? null : attempt(WebGLRenderer)) || attempt(Painter);
    this.fallback = renderer instanceof Painter && wish !== 'canvas';
    return renderer;
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2) * this.quality;
    const width = Math.max(1, Math.round(this.canvas.clientWidth * ratio)), height = Math.max(1, Math.round(this.canvas.clientHeight * ratio));
    const changed = this.canvas.width !== width || this.canvas.height !== height;
    if (changed) { this.canvas.width = width; this.canvas.height = height; }
    this.camera.resize(width, height, ratio);
    return changed;
  }

  /* The view that shows everything. */
  home(instantly = false) {
    const { low, high } = this.world, corners = [];
    for (let i = 0; i < 8; i++) corners.push([i & 1 ? high[0] : low[0], i & 2 ? high[1] : low[1], i & 4 ? high[2] : low[2]]);
    const home = this.camera.home;
    home.distance = this.distance || this.camera.fit(corners, home.target, 0.74);
    this.followed = this.world.focus();
    this.camera.reset(instantly);
    if (this.follow) this.setFollow(true);
    this.invalidate();
  }

  view(azimuth, elevation) { this.camera.turn(azimuth, elevation); this.invalidate(); }

  setFollow(follow) {
    this.follow = follow;
    this.followed = this.world.focus();
    this.invalidate();
  }

  setTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    this.invalidate();
  }

  seek(time) {
    this.time = clamp(time, this.start, this.end);
    this.world.update(this.time);
    if (this.follow) {
      const focus = this.world.focus(), shift = vec.sub(focus, this.followed);
      this.camera.goal.target = vec.add(this.camera.goal.target, shift);
      this.camera.target = vec.add(this.camera.target, shift);
      this.camera.place();
      this.followed = focus;
    }
    this.invalidate();
  }

  jump(time) { this.pause(); this.seek(time); }
  stepBy(frames) { this.jump(this.time + frames * (this.end - this.start) / Math.max(this.world.data.frames - 1, 1)); }
  toggle() { if (this.playing) this.pause(); else this.play(); }
  pause() { this.playing = false; this.invalidate(); }

  play() {
    if (!(this.end > this.start)) return;
    if (this.time >= this.end) this.seek(this.start);
    this.playing = true;
    this.invalidate();
  }

  invalidate() {
    this.stale = true;
    if (!this.pending && this.interface) {
      this.pending = true;
      requestAnimationFrame((stamp) => this.tick(stamp));
    }
  }

  tick(stamp) {
    this.pending = false;
    const seconds = this.last ? clamp((stamp - this.last) / 1000, 0, 0.25) : 0;
    const stamp0 = this.last;
    this.last = stamp;
    if (this.hidden) { this.last = 0; return; }
    if (this.playing) {
      this.seek(this.time + seconds * this.speed);
      if (this.time >= this.end) {
        this.ended = (this.ended || 0) + seconds;
        if (this.ended > 0.6) { this.ended = 0; this.seek(this.start); }
      }
    }
    const moving = this.camera.advance(seconds || 1 / 60);
    if (this.stale || moving || this.playing) this.draw();
    if (this.playing) this.adapt(stamp0 ? stamp - stamp0 : 0);
    if (this.playing || moving) this.invalidate(); else this.last = 0;
  }

  /* Fewer pixels where the machine cannot keep up (software rendering). */
  adapt(milliseconds) {
    this.slow = milliseconds > 55 ? this.slow + 1 : Math.max(this.slow - 2, 0);
    if (this.slow > 12 && this.quality > 0.6) { this.quality *= 0.8; this.slow = 0; this.resize(); }
  }

  draw() {
    if (!this.renderer) return;
    this.renderer.draw(this.camera, this.theme, this.time);
    this.draws++;
    this.stale = false;
    this.interface.show(this.time, this.canvas.clientWidth, this.canvas.clientHeight);
    publish(this);
  }

  savePicture() {
    this.draw();
    this.canvas.toBlob((blob) => {
      const link = element('a', { href: URL.createObjectURL(blob), download: `${this.world.data.title.replace(/[^\w-]+/g, '_') || 'scene'}_${this.time.toFixed(3)}s.png` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }
}

const state = window.jaxdyn = { ready: false, frames: 0, draws: 0, errors: [] };

function report(error) {
  state.errors.push(String(error && error.message || error));
  document.documentElement.dataset.jaxdyn = JSON.stringify(state);
}

function publish(player) {
  const { renderer, world } = player;
  Object.assign(state, {
    ready: true, renderer: renderer.name, frames: world.data.frames, draws: player.draws, time: player.time, duration: player.end - player.start, playing: player.playing,
    theme: player.theme, follow: player.follow, drawCalls: renderer.drawCalls, triangles: renderer.triangles, layers: player.interface.toggles.map(({ layer }) => ({ name: layer.name, kind: layer.kind, visible: layer.visible })),
  });
  if (!player.playing || player.draws % 30 === 1) document.documentElement.dataset.jaxdyn = JSON.stringify(state);
}

window.addEventListener('error', (event) => report(event.error || event.message));
window.addEventListener('unhandledrejection', (event) => report(event.reason));
document.addEventListener('securitypolicyviolation', (event) => report(`blocked by the security policy: ${event.blockedURI || event.violatedDirective}`));

function main() {
  const options = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const world = new World(JSON.parse(byId('data').textContent), byId('arrays').textContent);
  const player = new Player(world, byId('canvas'), options);
  state.player = undefined;
  Object.defineProperty(state, 'player', { value: player, enumerable: false });
  if (!player.renderer) {
    player.interface.message('This browser offers neither WebGL 2 nor a 2-D canvas, so the scene cannot be drawn.');
    report('no renderer');
    return;
  }
  if (player.fallback) player.interface.message('No WebGL 2 here: a simpler picture is painted instead.', true);
  const still = options.t !== undefined || window.matchMedia('(prefers-reduced-motion: reduce)').matches;
  player.seek(options.t !== undefined ? Number(options.t) : player.start);
  if (options.follow === '1' || (options.follow === undefined && world.data.follow)) { player.setFollow(true); }
  player.camera.jump();
  player.draw();
  if (options.play === '1' || (options.play !== '0' && world.data.autoplay && !still)) player.play();
}

try { main(); } catch (error) {
  report(error);
  byId('message').textContent = `The scene could not be drawn: ${error.message}`;
  byId('message').hidden = false;
}
