/* Small vector, quaternion and matrix helpers. Quaternions are w, x, y, z; matrices are column-major; the world's z axis points up. */

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const mix = (a, b, f) => a + (b - a) * f;

const vec = {
  add: (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]],
  sub: (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]],
  scale: (a, s) => [a[0] * s, a[1] * s, a[2] * s],
  dot: (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2],
  cross: (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]],
  norm: (a) => Math.hypot(a[0], a[1], a[2]),
  unit: (a) => { const n = Math.hypot(a[0], a[1], a[2]) || 1; return [a[0] / n, a[1] / n, a[2] / n]; },
  mix: (a, b, f) => [mix(a[0], b[0], f), mix(a[1], b[1], f), mix(a[2], b[2], f)],
};

/* Rotates the vector v by the unit quaternion q. */
function rotate(q, v) {
  const tx = 2 * (q[2] * v[2] - q[3] * v[1]);
  const ty = 2 * (q[3] * v[0] - q[1] * v[2]);
  const tz = 2 * (q[1] * v[1] - q[2] * v[0]);
  return [
    v[0] + q[0] * tx + q[2] * tz - q[3] * ty,
    v[1] + q[0] * ty + q[3] * tx - q[1] * tz,
    v[2] + q[0] * tz + q[1] * ty - q[2] * tx,
  ];
}

/* The shortest rotation that takes the z axis to the unit vector d. */
function quaternionFromZ(d) {
  if (d[2] < -0.999999) return [0, 1, 0, 0];
  const w = 1 + d[2];
  const n = Math.hypot(w, d[1], d[0]);
  return [w / n, -d[1] / n, d[0] / n, 0];
}

/* out[o..o+6] = pose a[i..] composed with pose b[j..]; a pose is position (3), quaternion (4). */
function composePose(out, o, a, i, b, j) {
  const aw = a[i + 3], ax = a[i + 4], ay = a[i + 5], az = a[i + 6];
  const x = b[j], y = b[j + 1], z = b[j + 2];
  const tx = 2 * (ay * z - az * y), ty = 2 * (az * x - ax * z), tz = 2 * (ax * y - ay * x);
  out[o] = a[i] + x + aw * tx + ay * tz - az * ty;
  out[o + 1] = a[i + 1] + y + aw * ty + az * tx - ax * tz;
  out[o + 2] = a[i + 2] + z + aw * tz + ax * ty - ay * tx;
  const bw = b[j + 3], bx = b[j + 4], by = b[j + 5], bz = b[j + 6];
  out[o + 3] = aw * bw - ax * bx - ay * by - az * bz;
  out[o + 4] = aw * bx + ax * bw + ay * bz - az * by;
  out[o + 5] = aw * by - ax * bz + ay * bw + az * bx;
  out[o + 6] = aw * bz + ax * by - ay * bx + az * bw;
}

/* out[o..o+6] = the pose between a[i..] and a[j..] at the fraction f (normalised linear interpolation of the quaternion). */
function mixPose(out, o, a, i, j, f) {
  for (let k = 0; k < 3; k++) out[o + k] = a[i + k] + (a[j + k] - a[i + k]) * f;
  const dot = a[i + 3] * a[j + 3] + a[i + 4] * a[j + 4] + a[i + 5] * a[j + 5] + a[i + 6] * a[j + 6];
  const g = dot < 0 ? -f : f;
  let n = 0;
  for (let k = 3; k < 7; k++) {
    const x = a[i + k] * (1 - f) + a[j + k] * g;
    out[o + k] = x;
    n += x * x;
  }
  n = 1 / Math.sqrt(n || 1);
  for (let k = 3; k < 7; k++) out[o + k] *= n;
}

const mat = {
  multiply(a, b) {
    const out = new Float32Array(16);
    for (let c = 0; c < 4; c++) {
      for (let r = 0; r < 4; r++) {
        let s = 0;
        for (let k = 0; k < 4; k++) s += a[k * 4 + r] * b[c * 4 + k];
        out[c * 4 + r] = s;
      }
    }
    return out;
  },
  perspective(fovy, aspect, near, far) {
    const f = 1 / Math.tan(fovy / 2);
    const out = new Float32Array(16);
    out[0] = f / aspect;
    out[5] = f;
    out[10] = (far + near) / (near - far);
    out[11] = -1;
    out[14] = 2 * far * near / (near - far);
    return out;
  },
  orthographic(size, near, far) {
    const out = new Float32Array(16);
    out[0] = out[5] = 1 / size;
    out[10] = 2 / (near - far);
    out[14] = (far + near) / (near - far);
    out[15] = 1;
    return out;
  },
  /* right, up, back: the axes of the camera in the world. */
  view(eye, right, up, back) {
    return new Float32Array([
      right[0], up[0], back[0], 0, right[1], up[1], back[1], 0, right[2], up[2], back[2], 0,
      -vec.dot(right, eye), -vec.dot(up, eye), -vec.dot(back, eye), 1,
    ]);
  },
  /* Clip coordinates of a point. */
  project: (m, p) => [0, 1, 2, 3].map((r) => m[r] * p[0] + m[4 + r] * p[1] + m[8 + r] * p[2] + m[12 + r]),
};

/* "#rrggbb" to three numbers in 0..1. */
const parseColor = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255);
