/* GLSL sources. Lighting happens in linear light; sky and ground colours are given as they shall appear. */

const COMMON = `#version 300 es
precision highp float;
precision highp sampler2DShadow;
`;

const INSTANCE = `
layout(location = 0) in vec3 corner;
layout(location = 1) in vec3 direction;
layout(location = 2) in vec3 position;
layout(location = 3) in vec4 quaternion;
layout(location = 4) in vec4 size;
layout(location = 5) in vec4 color;
vec3 turn(vec4 q, vec3 v) { return v + 2.0 * cross(q.yzw, cross(q.yzw, v) + q.x * v); }
vec3 worldPoint() { return position + turn(quaternion, corner * size.xyz + direction * size.w); }
vec3 worldNormal() { return turn(quaternion, size.w > 0.0 ? direction : normalize(direction / size.xyz)); }
`;

const SHADOW = `
uniform sampler2DShadow shadowMap;
uniform mat4 shadowMatrix;
uniform float shadowTexel;
uniform float shadowSpread;
float shadow(vec3 point) {
  vec4 clip = shadowMatrix * vec4(point, 1.0);
  vec3 uv = clip.xyz * 0.5 + 0.5;
  if (any(lessThan(uv, vec3(0.0))) || any(greaterThan(uv, vec3(1.0)))) return 1.0;
  float sum = 0.0, total = 0.0;
  for (int i = -2; i <= 2; i++) {
    for (int j = -2; j <= 2; j++) {
      float weight = (3.0 - abs(float(i))) * (3.0 - abs(float(j)));
      sum += weight * texture(shadowMap, uv + vec3(vec2(i, j) * shadowTexel * shadowSpread, 0.0));
      total += weight;
    }
  }
  vec2 edge = smoothstep(0.5, 0.44, abs(uv.xy - 0.5));
  return mix(1.0, sum / total, edge.x * edge.y);
}
`;

const SKY = `
uniform vec3 zenithColor, horizonColor, nadirColor;
vec3 sky(vec3 ray) { return ray.z > 0.0 ? mix(horizonColor, zenithColor, smoothstep(0.0, 0.7, ray.z)) : mix(horizonColor, nadirColor, smoothstep(0.0, 0.9, -ray.z)); }
float dither(vec2 p) { return (fract(52.9829189 * fract(dot(p, vec2(0.06711056, 0.00583715)))) - 0.5) / 255.0; }
`;

const SHADERS = {
  solid: {
    vertex: COMMON + INSTANCE + `
uniform mat4 viewProjection;
out vec3 point, normal;
out vec4 tint;
void main() {
  point = worldPoint();
  normal = worldNormal();
  tint = color;
  gl_Position = viewProjection * vec4(point, 1.0);
}`,
    fragment: COMMON + SHADOW + `
in vec3 point, normal;
in vec4 tint;
uniform vec3 eye, sun, sunColor, skyLight, bounceLight, groundPoint, groundNormal;
uniform float glow, occlusionHeight, normalOffset, gridCell;
out vec4 result;
float lines(vec2 p) {
  vec2 width = fwidth(p), d = abs(fract(p - 0.5) - 0.5);
  vec2 line = 1.0 - smoothstep(vec2(0.0), 1.3 * width, d - 0.35 * width);
  return max(line.x * (1.0 - smoothstep(0.2, 0.5, width.x)), line.y * (1.0 - smoothstep(0.2, 0.5, width.y)));
}
void main() {
  vec3 n = normalize(normal), v = normalize(eye - point);
  if (dot(n, v) < 0.0 && !gl_FrontFacing) n = -n;
  vec3 albedo = pow(tint.rgb, vec3(2.2));
  if (gridCell > 0.0) albedo *= 1.0 - 0.22 * lines(point.xy / gridCell);
  float facing = dot(n, sun);
  float lit = facing > 0.0 ? shadow(point + n * normalOffset) : 0.0;
  float height = dot(point - groundPoint, groundNormal);
  float down = 0.5 - 0.5 * dot(n, groundNormal);
  float open = mix(1.0, mix(0.35, 1.0, smoothstep(0.0, occlusionHeight, height)), 0.25 + 0.75 * down);
  vec3 ambient = mix(bounceLight, skyLight, n.z * 0.5 + 0.5) * open;
  float fill = max(dot(n, normalize(v + vec3(0.0, 0.0, 0.25))), 0.0);
  vec3 light = ambient + sunColor * max(facing, 0.0) * lit + 0.16 * fill;
  float fresnel = pow(1.0 - max(dot(n, v), 0.0), 5.0);
  float gloss = pow(max(dot(n, normalize(sun + v)), 0.0), 56.0) * 0.22 * lit;
  vec3 shade = albedo * light + gloss * sunColor + skyLight * (0.025 + 0.20 * fresnel) * open;
  shade = mix(1.0 - exp(-1.3 * shade), albedo * (0.78 + 0.32 * fill), glow);
  result = vec4(pow(shade, vec3(1.0 / 2.2)), tint.a);
}`,
  },
  /* Into the shadow map, with a picture of what the sun sees: coverage, and height above the ground. */
  caster: {
    vertex: COMMON + INSTANCE + `
uniform mat4 viewProjection;
uniform vec3 groundPoint, groundNormal;
uniform float heightRange;
out float height;
void main() {
  vec3 point = worldPoint();
  height = dot(point - groundPoint, groundNormal) / heightRange;
  gl_Position = viewProjection * vec4(point, 1.0);
}`,
    fragment: COMMON + `
in float height;
out vec4 result;
void main() { result = vec4(1.0, clamp(height, 0.0, 1.0), 0.0, 1.0); }`,
  },
  depth: {
    vertex: COMMON + INSTANCE + `
uniform mat4 viewProjection;
void main() { gl_Position = viewProjection * vec4(worldPoint(), 1.0); }`,
    fragment: COMMON + 'void main() {}',
  },
  backdrop: {
    vertex: COMMON + `
uniform vec3 cameraRight, cameraUp, cameraBack;
uniform vec2 tangent;
out vec3 ray;
void main() {
  vec2 p = vec2(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0);
  ray = cameraRight * p.x * tangent.x + cameraUp * p.y * tangent.y - cameraBack;
  gl_Position = vec4(p, 1.0, 1.0);
}`,
    fragment: COMMON + SKY + `
in vec3 ray;
out vec4 result;
void main() { result = vec4(sky(normalize(ray)) + dither(gl_FragCoord.xy), 1.0); }`,
  },
  ground: {
    vertex: COMMON + `
uniform mat4 viewProjection;
uniform vec3 groundPoint, groundX, groundY, focus;
uniform float extent;
out vec3 point;
out vec2 plane;
void main() {
  vec2 p = vec2(gl_VertexID & 1, gl_VertexID >> 1) * 2.0 - 1.0;
  vec3 offset = focus - groundPoint;
  plane = p * extent + vec2(dot(offset, groundX), dot(offset, groundY));
  point = groundPoint + plane.x * groundX + plane.y * groundY;
  gl_Position = viewProjection * vec4(point, 1.0);
}`,
    fragment: COMMON + SKY + `
in vec3 point;
in vec2 plane;
uniform sampler2D coverMap;
uniform mat4 shadowMatrix;
uniform vec3 eye, focus, groundColor, checkColor, lineColor;
uniform float extent, fadeStart, fadeEnd, cell, checker, gridLines, shadowStrength, heightRange, shadowTexel, texelSize;
out vec4 result;
/* The higher what casts the shadow, the softer its edge: the mean height there chooses the level of detail of the coverage. */
float shade(vec3 p) {
  vec2 uv = (shadowMatrix * vec4(p, 1.0)).xy * 0.5 + 0.5;
  if (any(lessThan(uv, vec2(0.0))) || any(greaterThan(uv, vec2(1.0)))) return 0.0;
  float level = log2(0.03 * heightRange / texelSize);
  vec2 found = textureLod(coverMap, uv, level).rg + textureLod(coverMap, uv, level + 2.0).rg * 0.1;
  for (int i = -1; i <= 1; i += 2) for (int j = -1; j <= 1; j += 2) found += textureLod(coverMap, uv + vec2(i, j) * exp2(level + 1.5) * shadowTexel, level + 1.5).rg * 0.1;
  if (found.r < 1e-4) return 0.0;
  float blur = clamp(found.g / found.r * heightRange * 0.10, texelSize, 0.07 * heightRange);
  float lod = max(log2(blur / texelSize) - 0.6, 0.0), step = exp2(lod) * shadowTexel * 0.85;
  float sum = 0.0;
  for (int i = -2; i <= 2; i++) {
    for (int j = -2; j <= 2; j++) sum += (3.0 - abs(float(i))) * (3.0 - abs(float(j))) * textureLod(coverMap, uv + vec2(i, j) * step, lod).r;
  }
  vec2 edge = smoothstep(0.5, 0.44, abs(uv - 0.5));
  return sum / 81.0 * edge.x * edge.y;
}
vec2 tri(vec2 x) { vec2 h = fract(x * 0.5) - 0.5; return 1.0 - 2.0 * abs(h); }
float check(vec2 p) {
  vec2 w = max(fwidth(p), 1e-4);
  vec2 i = (tri(p + 0.5 * w) - tri(p - 0.5 * w)) / w;
  return 0.5 - 0.5 * i.x * i.y;
}
float lines(vec2 p, float thickness) {
  vec2 width = fwidth(p), d = abs(fract(p - 0.5) - 0.5);
  vec2 line = 1.0 - smoothstep(vec2(0.0), 1.2 * width, d - thickness * width);
  line *= 1.0 - smoothstep(0.15, 0.6, width);
  return max(line.x, line.y);
}
void main() {
  float away = length(point - focus);
  vec3 color = mix(groundColor, checkColor, checker * check(plane / cell));
  color = mix(color, lineColor, 0.5 * gridLines * lines(plane / cell, 0.1));
  color = mix(color, lineColor, gridLines * lines(plane / (5.0 * cell), 0.25));
  color *= 1.0 - shadowStrength * shade(point);
  vec3 ray = normalize(point - eye);
  float fade = smoothstep(fadeStart, fadeEnd, away);
  float seen = gl_FrontFacing ? 1.0 : 0.25;
  color = mix(color, sky(vec3(ray.xy, min(ray.z, 0.0) * 0.15)), fade);
  result = vec4(color + dither(gl_FragCoord.xy), (1.0 - smoothstep(0.7 * fadeEnd, 1.3 * fadeEnd, away)) * seen);
}`,
  },
  line: {
    vertex: COMMON + `
layout(location = 0) in vec4 start;
layout(location = 1) in vec4 end;
layout(location = 2) in vec4 color;
uniform mat4 viewProjection;
uniform vec2 pixels;
uniform float width;
out vec4 tint;
out float moment;
out vec2 across;
void main() {
  vec4 a = viewProjection * vec4(start.xyz, 1.0), b = viewProjection * vec4(end.xyz, 1.0);
  float near = 1e-3;
  if (a.w < near) a = mix(a, b, (near - a.w) / (b.w - a.w));
  if (b.w < near) b = mix(b, a, (near - b.w) / (a.w - b.w));
  vec2 along = (b.xy / b.w - a.xy / a.w) * pixels;
  float span = length(along);
  along = span > 1e-6 ? along / span : vec2(1.0, 0.0);
  float side = (gl_VertexID & 1) == 0 ? -1.0 : 1.0;
  bool last = gl_VertexID > 1;
  vec4 p = last ? b : a;
  float reach = 0.5 * width + 1.0;
  vec2 shift = vec2(-along.y, along.x) * side * reach + along * (last ? 1.0 : -1.0) * 0.5 * width;
  p.xy += shift / pixels * p.w * 2.0;
  p.z -= 2e-4 * p.w;
  gl_Position = p;
  tint = color;
  moment = last ? end.w : start.w;
  across = vec2(side * reach, 0.5 * width);
}`,
    fragment: COMMON + `
in vec4 tint;
in float moment;
in vec2 across;
uniform float now;
uniform vec3 horizonColor;
out vec4 result;
void main() {
  float cover = clamp(across.y + 0.5 - abs(across.x), 0.0, 1.0);
  float future = step(now, moment - 1e-5);
  result = vec4(mix(tint.rgb, horizonColor, 0.62 * future), tint.a * cover);
}`,
  },
};
