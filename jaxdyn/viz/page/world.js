/* What there is to draw. The page's data (see html.py for the format) becomes layers; a layer owns batches of instanced solids and sets of lines
   and moves them to a given time. Both renderers read `world.batches`, `world.lines` and `world.ground`. */

class Archive {
  constructor(base64) {
    const text = atob(base64), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    this.buffer = bytes.buffer;
  }

  /* A reference is [type, offset in bytes, number of elements]. */
  read(reference) {
    if (!reference) return null;
    const [type, offset, length] = reference;
    const Type = { f4: Float32Array, u4: Uint32Array, u2: Uint16Array }[type];
    return new Type(this.buffer, offset, length);
  }
}

/* The two samples around time t and the fraction between them; the ends are held. */
function bracket(times, t) {
  if (!times || times.length < 2 || t <= times[0]) return [0, 0, 0];
  let low = 0, high = times.length - 1;
  if (t >= times[high]) return [high, high, 0];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] <= t) low = middle; else high = middle;
  }
  return [low, high, (t - times[low]) / (times[high] - times[low])];
}

class Library {
  constructor(archive, meshes, instances) {
    this.archive = archive;
    this.meshes = meshes;
    this.cache = new Map();
    /* the more there is, the coarser */
    this.grade = instances < 400 ? 0 : instances < 3000 ? 1 : 2;
  }

  get(kind) {
    if (!this.cache.has(kind)) this.cache.set(kind, this.make(kind));
    return this.cache.get(kind);
  }

  make(kind) {
    const pick = (...choices) => choices[this.grade];
    if (kind === 'box') return roundedCube(pick(2, 1, 1));
    if (kind === 'round') return roundedCube(pick(7, 4, 2));
    if (kind === 'cylinder') return cylinder(pick(40, 20, 12), pick(3, 2, 1));
    if (kind === 'shaft') return cylinder(pick(16, 10, 6), 1);
    if (kind === 'dot') return roundedCube(pick(4, 2, 1));
    if (kind === 'cone') return cone(pick(24, 14, 8));
    const mesh = this.meshes[Number(kind.slice(5))], quantised = this.archive.read(mesh.vertices);
    const positions = new Float32Array(quantised.length);
    for (let i = 0; i < positions.length; i++) positions[i] = mesh.low[i % 3] + quantised[i] / 65535 * (mesh.high[i % 3] - mesh.low[i % 3]);
    return creasedMesh(positions, this.archive.read(mesh.triangles));
  }
}

/* Which unit solid a shape uses, and the half extents and rounding of its instance. */
function solidOf(shape, bevel) {
  const [a, b, c] = shape.size;
  if (shape.kind === 'sphere') return ['round', [0, 0, 0, a]];
  if (shape.kind === 'capsule') return ['round', [0, 0, b / 2, a]];
  if (shape.kind === 'cylinder') {
    const r = Math.min(bevel, 0.3 * a, 0.2 * b);
    return ['cylinder', [a - r, a - r, b / 2 - r, r]];
  }
  if (shape.kind === 'box') {
    const r = Math.min(bevel, 0.15 * Math.min(a, b, c));
    return ['box', [a / 2 - r, b / 2 - r, c / 2 - r, r]];
  }
  return [`mesh/${shape.mesh}`, [a, b, c, 0]];
}

class Layer {
  constructor(world, data) {
    this.world = world;
    this.data = data;
    this.name = data.name;
    this.kind = data.kind;
    this.swatch = data.swatch;
    this.visible = data.visible !== false;
    this.times = world.archive.read(data.times);
  }

  batch(kind, count, options = {}) {
    const batch = { geometry: this.world.library.get(kind), count, poses: new Float32Array(7 * count), looks: new Float32Array(8 * count), layer: this, moved: true, ...options };
    this.world.batches.push(batch);
    return batch;
  }

  linesOf(segments, options) {
    const lines = { data: new Float32Array(12 * segments), layer: this, moved: true, ...options };
    this.world.lines.push(lines);
    return lines;
  }

  update() {}
}

class BodiesLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    this.samples = world.archive.read(data.poses);
    this.offsets = world.archive.read(data.offsets);
    this.environments = data.environments;
    this.bodies = data.bodies;
    this.fixed = new Float32Array([0, 0, 0, 1, 0, 0, 0]);
    this.worldPoses = new Float32Array(7 * this.environments * (this.bodies + 1));
    this.members = [];
    const groups = new Map();
    for (const shape of data.shapes) {
      const [kind, size] = solidOf(shape, 0.012 * world.robotSize);
      for (let e = 0; e < this.environments; e++) {
        const opacity = data.opacity[e] * shape.color[3], key = `${kind} ${opacity < 0.995}`;
        if (!groups.has(key)) groups.set(key, { kind, translucent: opacity < 0.995, list: [] });
        const rgb = data.colors ? data.colors[e] : shape.color;
        groups.get(key).list.push({ slot: e * (this.bodies + 1) + shape.body + 1, local: [...shape.position, ...shape.quaternion], look: [...size, rgb[0], rgb[1], rgb[2], opacity] });
      }
    }
    for (const { kind, translucent, list } of groups.values()) {
      const batch = this.batch(kind, list.length, { translucent, castsShadow: data.shadow && !translucent, glow: data.glow || 0 });
      list.forEach((member, i) => batch.looks.set(member.look, 8 * i));
      const locals = new Float32Array(list.flatMap((member) => member.local));
      this.members.push({ batch, slots: Uint32Array.from(list, (member) => 7 * member.slot), locals });
    }
    this.update(-Infinity, true);
  }

  update(t, first = false) {
    const moving = this.times && this.times.length > 1;
    if (!first && !moving) { for (const { batch } of this.members) batch.moved = false; return; }
    const [i, j, f] = bracket(this.times, t), E = this.environments, B = this.bodies, out = this.worldPoses;
    for (let e = 0; e < E; e++) {
      const o = 7 * e * (B + 1);
      out.set(this.fixed, o);
      for (let b = 0; b < B; b++) mixPose(out, o + 7 * (b + 1), this.samples, 7 * ((i * E + e) * B + b), 7 * ((j * E + e) * B + b), f);
      for (let b = 0; b <= B; b++) for (let k = 0; k < 3; k++) out[o + 7 * b + k] += this.offsets[3 * e + k];
    }
    for (const { batch, slots, locals } of this.members) {
      for (let n = 0; n < slots.length; n++) composePose(batch.poses, 7 * n, out, slots[n], locals, 7 * n);
      batch.moved = true;
    }
  }

  /* World position of a body (-1: the world) in an environment. */
  position(environment, body) {
    const o = 7 * (environment * (this.bodies + 1) + body + 1);
    return [this.worldPoses[o], this.worldPoses[o + 1], this.worldPoses[o + 2]];
  }
}

const AXIS_COLORS = [[0.90, 0.22, 0.21], [0.18, 0.66, 0.33], [0.16, 0.45, 0.92]];

function drawAxes(data, slot, poses, o, size) {
  const q = [poses[o + 3], poses[o + 4], poses[o + 5], poses[o + 6]];
  for (let k = 0; k < 3; k++) {
    const tip = rotate(q, [k === 0 ? size : 0, k === 1 ? size : 0, k === 2 ? size : 0]);
    const s = 12 * (3 * slot + k);
    for (let c = 0; c < 3; c++) {
      data[s + c] = poses[o + c];
      data[s + 4 + c] = poses[o + c] + tip[c];
      data[s + 8 + c] = AXIS_COLORS[k][c];
    }
    data[s + 11] = 1;
  }
}

/* The coordinate axes of all bodies of the robots. */
class BodyFramesLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    this.robots = data.robots.map((i) => world.layers[i]);
    const count = this.robots.reduce((n, robot) => n + robot.environments * robot.bodies, 0);
    this.lines = this.linesOf(3 * count, { width: 2.2, onTop: true });
    this.update();
  }

  update() {
    let slot = 0;
    for (const robot of this.robots) {
      for (let e = 0; e < robot.environments; e++) {
        for (let b = 1; b <= robot.bodies; b++) drawAxes(this.lines.data, slot++, robot.worldPoses, 7 * (e * (robot.bodies + 1) + b), this.data.size);
      }
    }
    this.lines.moved = true;
  }
}

/* Coordinate axes that are given for themselves: targets, feet, sensors. */
class FramesLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    this.samples = world.archive.read(data.poses);
    this.count = data.count;
    this.lines = this.linesOf(3 * this.count, { width: 3, onTop: true });
    this.pose = new Float32Array(7);
    this.update(-Infinity);
  }

  update(t) {
    const [i, j, f] = bracket(this.times, t);
    for (let n = 0; n < this.count; n++) {
      mixPose(this.pose, 0, this.samples, 7 * (i * this.count + n), 7 * (j * this.count + n), f);
      drawAxes(this.lines.data, n, this.pose, 0, this.data.size);
    }
    this.lines.moved = true;
  }
}

class ForcesLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    this.samples = world.archive.read(data.samples);
    this.number = data.count;
    const options = { castsShadow: false, glow: 0.7, resized: true };
    this.shafts = this.batch('shaft', this.number, { ...options });
    this.heads = this.batch('cone', this.number, { ...options });
    this.dots = this.batch('dot', this.number, { ...options });
    this.color = parseColor(data.swatch);
    this.update(-Infinity);
  }

  update(t) {
    const [i, j, f] = bracket(this.times, t), s = this.samples, N = this.number, radius = this.data.radius;
    let shown = 0;
    const put = (batch, position, q, size) => {
      batch.poses.set([...position, ...q], 7 * shown);
      batch.looks.set([...size, ...this.color, 1], 8 * shown);
    };
    for (let n = 0; n < N; n++) {
      const a = 6 * (i * N + n), b = 6 * (j * N + n), x = [0, 0, 0, 0, 0, 0];
      for (let k = 0; k < 6; k++) x[k] = mix(s[a + k], s[b + k], f);
      const force = Math.hypot(x[3], x[4], x[5]);
      if (!(force > this.data.threshold)) continue;
      const direction = [x[3] / force, x[4] / force, x[5] / force], length = force * this.data.scale;
      const head = Math.min(6 * radius, 0.6 * length), thin = Math.min(radius, 0.25 * head), shaft = length - head;
      const q = quaternionFromZ(direction), at = (d) => [x[0] + direction[0] * d, x[1] + direction[1] * d, x[2] + direction[2] * d];
      const r = 0.3 * thin;
      put(this.shafts, at(shaft / 2), q, [thin - r, thin - r, Math.max(shaft / 2 - r, 1e-6), r]);
      put(this.heads, at(shaft), q, [2.6 * thin, 2.6 * thin, head, 0]);
      put(this.dots, at(0), q, [0, 0, 0, 1.7 * thin]);
      shown++;
    }
    for (const batch of [this.shafts, this.heads, this.dots]) { batch.count = shown; batch.moved = true; }
  }
}

class TracesLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    const points = world.archive.read(data.points), T = data.length, E = data.count, times = this.times;
    const lines = this.linesOf(E * (T - 1), { width: data.width, timed: !!times });
    for (let e = 0; e < E; e++) {
      const rgb = data.colors[e];
      for (let i = 0; i + 1 < T; i++) {
        const a = 3 * (e * T + i), b = a + 3;
        lines.data.set([points[a], points[a + 1], points[a + 2], times ? times[i] : 0, points[b], points[b + 1], points[b + 2], times ? times[i + 1] : 0, ...rgb, 1], 12 * (e * (T - 1) + i));
      }
    }
    this.lines = lines;
  }

  update() { this.lines.moved = false; }
}

class SurfaceLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    const key = `surface ${world.layers.length}`;
    world.library.cache.set(key, heightSurface(world.archive.read(data.x), world.archive.read(data.y), world.archive.read(data.z)));
    const one = this.batch(key, 1, { castsShadow: true, gridCell: data.cell });
    one.poses.set([0, 0, 0, 1, 0, 0, 0]);
    one.looks.set([1, 1, 1, 0, ...parseColor(data.swatch), 1]);
    this.one = one;
  }

  update() { this.one.moved = false; }
}

class LabelsLayer extends Layer {
  constructor(world, data) {
    super(world, data);
    this.items = data.items.map((item) => ({ ...item, times: world.archive.read(item.times), points: world.archive.read(item.points) }));
  }

  /* World positions of the labels at time t. */
  positions(t) {
    return this.items.map((item) => {
      if (item.robot !== undefined) return vec.add(this.world.layers[item.robot].position(item.environment, item.body), item.lift);
      const [i, j, f] = bracket(item.times, t), p = item.points;
      return [0, 1, 2].map((k) => mix(p[3 * i + k], p[3 * j + k], f));
    });
  }
}

class World {
  constructor(data, base64) {
    this.archive = new Archive(base64);
    this.data = data;
    this.batches = [];
    this.lines = [];
    this.layers = [];
    this.low = data.bounds[0];
    this.high = data.bounds[1];
    this.center = vec.scale(vec.add(this.low, this.high), 0.5);
    this.size = Math.max(vec.norm(vec.sub(this.high, this.low)) / 2, 1e-3);
    this.robotSize = data.robotSize;
    const instances = data.layers.reduce((n, layer) => n + (layer.shapes ? layer.shapes.length * layer.environments : 0), 0);
    this.library = new Library(this.archive, data.meshes, instances);
    const g = data.ground;
    const groundLayer = new Layer(this, { name: g.name, kind: 'ground', swatch: '#aab2bc', visible: g.visible });
    this.ground = { ...g, layer: groundLayer, x: rotate(g.quaternion, [1, 0, 0]), y: rotate(g.quaternion, [0, 1, 0]), normal: rotate(g.quaternion, [0, 0, 1]) };
    const classes = { bodies: BodiesLayer, bodyFrames: BodyFramesLayer, frames: FramesLayer, forces: ForcesLayer, traces: TracesLayer, surface: SurfaceLayer, labels: LabelsLayer };
    for (const layer of data.layers) this.layers.push(new classes[layer.form](this, layer));
    this.subject = this.layers.find((layer) => layer.kind === 'robot') || this.layers.find((layer) => layer instanceof BodiesLayer && layer.times);
  }

  update(t) { for (const layer of this.layers) layer.update(t); }

  /* The point that a following camera keeps in view. */
  focus() { return this.subject && this.subject.bodies ? this.subject.position(0, 0) : this.center; }

  onGround(point) {
    const g = this.ground;
    return vec.sub(point, vec.scale(g.normal, vec.dot(vec.sub(point, g.point), g.normal)));
  }

  /* The sphere that the shadow map covers: everything, or what is near the camera's target if the scene is much larger than the view. */
  shadowFocus(camera) {
    const near = 1.1 * camera.distance;
    if (near < 0.6 * this.size) return { center: camera.target, radius: near };
    return { center: this.center, radius: 1.15 * this.size };
  }
}
