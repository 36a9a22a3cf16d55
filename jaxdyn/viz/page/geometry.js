/* Meshes of the unit solids. A vertex has six numbers, `corner` and `direction`; an instance has half extents h and a rounding radius r, and the
   vertex lies at  corner * h + direction * r.  One mesh thus makes boxes with rounded edges, spheres (h = 0) and capsules (h = (0, 0, l/2)) without
   deforming the rounding; with r = 0 it is a plain mesh scaled by h, whose direction is its normal. */

/* A cube-sphere cut along its three planes of symmetry, so that each octant can move away with its corner; n steps from the middle of a face to its edge. */
function roundedCube(n) {
  const steps = [];
  for (let i = 0; i <= n; i++) steps.push([-Math.tan((1 - i / n) * Math.PI / 4), -1]);
  for (let i = 0; i <= n; i++) steps.push([Math.tan(i / n * Math.PI / 4), 1]);
  const m = steps.length;
  const vertices = [], indices = [];
  for (let axis = 0; axis < 3; axis++) {
    for (const sign of [-1, 1]) {
      const first = vertices.length / 6;
      for (const [u, su] of steps) {
        for (const [v, sv] of steps) {
          const corner = [0, 0, 0], direction = [0, 0, 0];
          corner[axis] = sign; corner[(axis + 1) % 3] = su; corner[(axis + 2) % 3] = sv;
          direction[axis] = sign; direction[(axis + 1) % 3] = u; direction[(axis + 2) % 3] = v;
          vertices.push(...corner, ...vec.unit(direction));
        }
      }
      for (let i = 0; i + 1 < m; i++) {
        for (let j = 0; j + 1 < m; j++) {
          const a = first + i * m + j, b = a + m, c = b + 1, d = a + 1;
          if (sign > 0) indices.push(a, b, c, a, c, d); else indices.push(a, c, b, a, d, c);
        }
      }
    }
  }
  return { vertices: new Float32Array(vertices), indices: new Uint32Array(indices) };
}

/* A surface of revolution about z. A profile point is [corner radius, corner z, direction radius, direction z], from the bottom up. */
function revolve(profile, segments) {
  const vertices = [], indices = [], m = profile.length;
  for (let k = 0; k <= segments; k++) {
    const angle = k / segments * 2 * Math.PI, c = Math.cos(angle), s = Math.sin(angle);
    for (const [radius, z, outward, upward] of profile) vertices.push(radius * c, radius * s, z, outward * c, outward * s, upward);
  }
  for (let k = 0; k < segments; k++) {
    for (let i = 0; i + 1 < m; i++) {
      const a = k * m + i, b = a + m, c = b + 1, d = a + 1;
      indices.push(a, b, c, a, c, d);
    }
  }
  return { vertices: new Float32Array(vertices), indices: new Uint32Array(indices) };
}

function cylinder(segments, bevel) {
  const bottom = [], top = [];
  for (let i = 0; i <= bevel; i++) {
    const angle = i / bevel * Math.PI / 2;
    bottom.push([1, -1, Math.sin(angle), -Math.cos(angle)]);
    top.push([1, 1, Math.cos(angle), Math.sin(angle)]);
  }
  return revolve([[0, -1, 0, -1], ...bottom, ...top, [0, 1, 0, 1]], segments);
}

/* Apex at z = 1, base in z = 0. */
function cone(segments) {
  return revolve([[0, 0, 0, -1], [1, 0, 0, -1], [1, 0, Math.SQRT1_2, Math.SQRT1_2], [0, 1, Math.SQRT1_2, Math.SQRT1_2]], segments);
}

/* A triangle mesh whose normals are averaged over the neighbours within the crease angle, so that curved parts look smooth and edges stay sharp. */
function creasedMesh(positions, triangles, creaseDegrees = 38) {
  const count = triangles.length / 3, limit = Math.cos(creaseDegrees * Math.PI / 180);
  const normals = new Float32Array(count * 3), areas = new Float32Array(count);
  const used = new Uint32Array(positions.length / 3 + 1);
  const point = (i) => [positions[3 * i], positions[3 * i + 1], positions[3 * i + 2]];
  for (let t = 0; t < count; t++) {
    const a = point(triangles[3 * t]), b = point(triangles[3 * t + 1]), c = point(triangles[3 * t + 2]);
    const n = vec.cross(vec.sub(b, a), vec.sub(c, a));
    areas[t] = vec.norm(n);
    normals.set(vec.unit(n), 3 * t);
    for (let k = 0; k < 3; k++) used[triangles[3 * t + k] + 1]++;
  }
  for (let i = 1; i < used.length; i++) used[i] += used[i - 1];
  const next = used.slice(), faces = new Uint32Array(3 * count);
  for (let t = 0; t < count; t++) for (let k = 0; k < 3; k++) faces[next[triangles[3 * t + k]]++] = t;
  const vertices = new Float32Array(count * 18), indices = new Uint32Array(count * 3);
  for (let t = 0; t < count; t++) {
    for (let k = 0; k < 3; k++) {
      const i = triangles[3 * t + k];
      let n = [0, 0, 0];
      for (let s = used[i]; s < used[i + 1]; s++) {
        const f = faces[s];
        const dot = normals[3 * f] * normals[3 * t] + normals[3 * f + 1] * normals[3 * t + 1] + normals[3 * f + 2] * normals[3 * t + 2];
        if (dot > limit) n = vec.add(n, vec.scale([normals[3 * f], normals[3 * f + 1], normals[3 * f + 2]], areas[f]));
      }
      vertices.set(point(i), 6 * (3 * t + k));
      vertices.set(vec.unit(n), 6 * (3 * t + k) + 3);
      indices[3 * t + k] = 3 * t + k;
    }
  }
  return { vertices, indices };
}

/* A grid of heights, row by row along y, columns along x; normals from central differences. */
function heightSurface(x, y, z) {
  const nx = x.length, ny = y.length;
  const vertices = new Float32Array(nx * ny * 6), indices = [];
  for (let i = 0; i < nx; i++) {
    for (let j = 0; j < ny; j++) {
      const i0 = Math.max(i - 1, 0), i1 = Math.min(i + 1, nx - 1), j0 = Math.max(j - 1, 0), j1 = Math.min(j + 1, ny - 1);
      const dx = (z[i1 * ny + j] - z[i0 * ny + j]) / (x[i1] - x[i0]), dy = (z[i * ny + j1] - z[i * ny + j0]) / (y[j1] - y[j0]);
      vertices.set([x[i], y[j], z[i * ny + j], ...vec.unit([-dx, -dy, 1])], 6 * (i * ny + j));
      if (i + 1 < nx && j + 1 < ny) {
        const a = i * ny + j, b = a + ny, c = b + 1, d = a + 1;
        indices.push(a, b, c, a, c, d);
      }
    }
  }
  return { vertices, indices: new Uint32Array(indices) };
}
