/* A camera that orbits a point, with the pointer and touch gestures that move it. Angles in radians. */

const FIELD_OF_VIEW = 32 * Math.PI / 180;

class Camera {
  constructor(home) {
    this.home = home;
    this.pixelRatio = 1;
    this.aspect = 1.6;
    this.height = 720;
    this.reset(true);
  }

  reset(instantly = false) {
    this.goal = { azimuth: this.home.azimuth, elevation: this.home.elevation, distance: this.home.distance, target: this.home.target.slice() };
    if (instantly) this.jump();
  }

  jump() {
    this.azimuth = this.goal.azimuth;
    this.elevation = this.goal.elevation;
    this.distance = this.goal.distance;
    this.target = this.goal.target.slice();
    this.place();
  }

  /* Moves towards the goal; returns whether it is still under way. */
  advance(seconds) {
    const f = 1 - Math.exp(-seconds * 16), g = this.goal;
    const before = [this.azimuth, this.elevation, Math.log(this.distance), ...vec.scale(this.target, 1 / this.distance)];
    this.azimuth = mix(this.azimuth, g.azimuth, f);
    this.elevation = mix(this.elevation, g.elevation, f);
    this.distance = Math.exp(mix(Math.log(this.distance), Math.log(g.distance), f));
    this.target = vec.mix(this.target, g.target, f);
    this.place();
    const after = [this.azimuth, this.elevation, Math.log(this.distance), ...vec.scale(this.target, 1 / this.distance)];
    if (after.every((x, i) => Math.abs(x - before[i]) < 2e-5)) { this.jump(); return false; }
    return true;
  }

  place() {
    const ce = Math.cos(this.elevation), se = Math.sin(this.elevation), ca = Math.cos(this.azimuth), sa = Math.sin(this.azimuth);
    this.back = [ca * ce, sa * ce, se];
    this.right = [-sa, ca, 0];
    this.up = vec.cross(this.back, this.right);
    this.eye = vec.add(this.target, vec.scale(this.back, this.distance));
    const tangent = Math.tan(FIELD_OF_VIEW / 2);
    this.tangent = [tangent * this.aspect, tangent];
    const projection = mat.perspective(FIELD_OF_VIEW, this.aspect, this.distance * 0.02, this.distance * 60);
    this.viewProjection = mat.multiply(projection, mat.view(this.eye, this.right, this.up, this.back));
  }

  resize(width, height, pixelRatio) {
    this.aspect = width / Math.max(height, 1);
    this.height = height;
    this.pixelRatio = pixelRatio;
    this.place();
  }

  /* The distance at which all points are in view, seen from the home direction; `margin` is the part of the picture they may fill. */
  fit(points, target, margin) {
    const ce = Math.cos(this.home.elevation), se = Math.sin(this.home.elevation), ca = Math.cos(this.home.azimuth), sa = Math.sin(this.home.azimuth);
    const back = [ca * ce, sa * ce, se], right = [-sa, ca, 0], up = vec.cross(back, right);
    const t = Math.tan(FIELD_OF_VIEW / 2) * margin;
    let distance = 1e-3;
    for (const p of points) {
      const d = vec.sub(p, target);
      const side = Math.max(Math.abs(vec.dot(d, right)) / (t * this.aspect), Math.abs(vec.dot(d, up)) / t);
      distance = Math.max(distance, side + vec.dot(d, back));
    }
    return distance;
  }

  eyeHeight(ground) { return vec.dot(vec.sub(this.eye, ground.point), ground.normal); }

  uniforms() {
    return {
      viewProjection: this.viewProjection, eye: this.eye, tangent: this.tangent, cameraRight: this.right, cameraUp: this.up, cameraBack: this.back,
    };
  }

  /* Pixel position of a world point, or null behind the camera. */
  toScreen(point, width, height) {
    const [x, y, , w] = mat.project(this.viewProjection, point);
    return w > 1e-6 ? [(x / w * 0.5 + 0.5) * width, (0.5 - y / w * 0.5) * height, w] : null;
  }

  orbit(dx, dy) {
    this.goal.azimuth -= dx * 0.0065;
    this.goal.elevation = clamp(this.goal.elevation + dy * 0.0065, -1.5, 1.5533);
  }

  pan(dx, dy) {
    const s = 2 * Math.tan(FIELD_OF_VIEW / 2) * this.distance / this.height;
    this.goal.target = vec.add(this.goal.target, vec.add(vec.scale(this.right, -dx * s), vec.scale(this.up, dy * s)));
  }

  zoom(factor) { this.goal.distance = clamp(this.goal.distance * factor, this.home.distance * 0.03, this.home.distance * 20); }

  turn(azimuth, elevation) {
    const turns = Math.round((this.goal.azimuth - azimuth) / (2 * Math.PI));
    this.goal.azimuth = azimuth + 2 * Math.PI * turns;
    this.goal.elevation = elevation;
  }

  /* Mouse: drag turns, right or middle button or shift pans, wheel zooms. Touch: one finger turns, two pan and pinch. */
  listen(element, changed) {
    const pointers = new Map();
    element.addEventListener('contextmenu', (event) => event.preventDefault());
    element.addEventListener('pointerdown', (event) => {
      element.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
    });
    const release = (event) => pointers.delete(event.pointerId);
    element.addEventListener('pointerup', release);
    element.addEventListener('pointercancel', release);
    element.addEventListener('lostpointercapture', release);
    element.addEventListener('pointermove', (event) => {
      const last = pointers.get(event.pointerId);
      if (!last) return;
      const next = [event.clientX, event.clientY], dx = next[0] - last[0], dy = next[1] - last[1];
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const before = Math.hypot(last[0] - other[0], last[1] - other[1]), after = Math.hypot(next[0] - other[0], next[1] - other[1]);
        if (before > 5 && after > 5) this.zoom(before / after);
        this.pan(dx / 2, dy / 2);
      } else if (event.buttons & 6 || event.shiftKey || event.ctrlKey) this.pan(dx, dy);
      else this.orbit(dx, dy);
      pointers.set(event.pointerId, next);
      changed();
    });
    const embedded = window.self !== window.top;
    element.addEventListener('wheel', (event) => {
      /* inside another page the wheel scrolls that page until somebody has clicked here */
      if (embedded && !document.hasFocus()) return;
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 18 : 1;
      this.zoom(Math.exp(clamp(event.deltaY * lines, -240, 240) * 0.0013));
      changed();
    }, { passive: false });
  }
}
