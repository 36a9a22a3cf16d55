/* Where WebGL is missing: the same world painted back to front on a 2-D canvas, flat shaded. Coarse solids, a bounded number of triangles. */

const PAINTER_TRIANGLES = 24000;

class Painter {
  static create(canvas) {
    const context = canvas.getContext('2d');
    return context && new Painter(context, canvas);
  }

  constructor(context, canvas) {
    this.name = 'canvas2d';
    this.context = context;
    this.canvas = canvas;
    this.coarse = new Map();
  }

  attach(world) {
    this.world = world;
    const substitutes = { box: roundedCube(1), round: roundedCube(2), cylinder: cylinder(14, 1), shaft: cylinder(6, 1), dot: roundedCube(1), cone: cone(8) };
    for (const [kind, geometry] of Object.entries(substitutes)) this.coarse.set(world.library.get(kind), geometry);
  }

  draw(camera, themeName, now) {
    const { context, canvas, world } = this, theme = THEMES[themeName], width = canvas.width, height = canvas.height;
    this.drawCalls = 0;
    const gradient = context.createLinearGradient(0, 0, 0, height);
    gradient.addColorStop(0, theme.horizon);
    gradient.addColorStop(1, theme.nadir);
    context.fillStyle = gradient;
    context.fillRect(0, 0, width, height);
    const screen = (p) => camera.toScreen(p, width, height);
    if (world.ground.layer.visible) this.floor(camera, theme, screen);
    const faces = this.faces(camera, theme, screen);
    context.lineJoin = 'round';
    for (const shadow of faces.shadows) this.polygon(shadow, theme.line, 0.55);
    faces.list.sort((a, b) => b.depth - a.depth);
    for (const face of faces.list) this.polygon(face.points, face.color, face.alpha);
    for (const lines of world.lines) if (lines.layer.visible) this.strokes(lines, camera, screen, now);
    this.triangles = faces.list.length;
  }

  floor(camera, theme, screen) {
    const { context, world } = this, g = world.ground, cells = 16, cell = g.cell;
    const offset = vec.sub(world.onGround(world.center), g.point);
    const snap = (axis) => Math.round(vec.dot(offset, axis) / cell) * cell;
    const x0 = snap(g.x), y0 = snap(g.y);
    context.strokeStyle = theme.line;
    context.lineWidth = camera.pixelRatio;
    for (let i = -cells; i <= cells; i++) {
      context.globalAlpha = 0.7 * (1 - Math.abs(i) / (cells + 1));
      for (const [a, b] of [[g.x, g.y], [g.y, g.x]]) {
        const base = vec.add(g.point, vec.add(vec.scale(g.x, x0), vec.scale(g.y, y0)));
        const ends = [-cells, cells].map((s) => screen(vec.add(base, vec.add(vec.scale(a, i * cell), vec.scale(b, s * cell)))));
        if (!ends[0] || !ends[1]) continue;
        context.beginPath();
        context.moveTo(ends[0][0], ends[0][1]);
        context.lineTo(ends[1][0], ends[1][1]);
        context.stroke();
      }
    }
    context.globalAlpha = 1;
  }

  faces(camera, theme, screen) {
    const list = [], shadows = [], { world } = this, g = world.ground;
    let left = PAINTER_TRIANGLES;
    for (const batch of world.batches) {
      if (!batch.layer.visible) continue;
      const { vertices, indices } = this.coarse.get(batch.geometry) || batch.geometry;
      for (let n = 0; n < batch.count && left > 0; n++) {
        const p = Array.from(batch.poses.subarray(7 * n, 7 * n + 7)), look = batch.looks.subarray(8 * n, 8 * n + 8), q = p.slice(3);
        const points = [], seen = [], cast = [];
        for (let v = 0; v < vertices.length; v += 6) {
          const local = [0, 1, 2].map((k) => vertices[v + k] * look[k] + vertices[v + 3 + k] * look[3]);
          const point = vec.add(rotate(q, local), p);
          points.push(point);
          seen.push(screen(point));
          if (batch.castsShadow && g.layer.visible) {
            const h = vec.dot(vec.sub(point, g.point), g.normal) / vec.dot(SUN, g.normal);
            cast.push(screen(vec.sub(point, vec.scale(SUN, h))));
          }
        }
        for (let t = 0; t < indices.length && left > 0; t += 3) {
          const [a, b, c] = [indices[t], indices[t + 1], indices[t + 2]];
          if (!seen[a] || !seen[b] || !seen[c]) continue;
          const area = (seen[b][0] - seen[a][0]) * (seen[c][1] - seen[a][1]) - (seen[b][1] - seen[a][1]) * (seen[c][0] - seen[a][0]);
          if (cast.length && cast[a] && cast[b] && cast[c]) shadows.push([cast[a], cast[b], cast[c]]);
          if (area >= -0.01) continue;
          const normal = vec.unit(vec.cross(vec.sub(points[b], points[a]), vec.sub(points[c], points[a])));
          const light = mix(0.62 + 0.12 * normal[2] + 0.42 * Math.max(vec.dot(normal, SUN), 0), 1, batch.glow || 0);
          const rgb = [4, 5, 6].map((k) => Math.round(255 * clamp(look[k] * light, 0, 1)));
          list.push({ points: [seen[a], seen[b], seen[c]], depth: seen[a][2] + seen[b][2] + seen[c][2], color: `rgb(${rgb})`, alpha: look[7] });
          left--;
        }
      }
      this.drawCalls++;
    }
    return { list, shadows };
  }

  polygon(points, color, alpha) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = context.strokeStyle = color;
    context.lineWidth = 0.7;
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fill();
    if (alpha > 0.99) context.stroke();
    context.globalAlpha = 1;
  }

  strokes(lines, camera, screen, now) {
    const { context } = this, d = lines.data;
    context.lineWidth = lines.width * camera.pixelRatio;
    context.lineCap = 'round';
    for (let s = 0; s < d.length; s += 12) {
      const a = screen([d[s], d[s + 1], d[s + 2]]), b = screen([d[s + 4], d[s + 5], d[s + 6]]);
      if (!a || !b) continue;
      context.globalAlpha = lines.timed && d[s + 7] > now ? 0.35 : 1;
      context.strokeStyle = `rgb(${[8, 9, 10].map((k) => Math.round(255 * d[s + k]))})`;
      context.beginPath();
      context.moveTo(a[0], a[1]);
      context.lineTo(b[0], b[1]);
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
