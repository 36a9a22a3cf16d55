/* The WebGL 2 renderer: instanced solids, one shadow map, an endless ground, wide lines. It draws a `World` (world.js) seen by a camera (camera.js). */

const SUN = vec.unit([0.42, -0.55, 1.05]);

const THEMES = {
  light: {
    zenith: '#cfd7e1', horizon: '#eef1f4', nadir: '#dfe3e8', ground: '#e9ecf0', check: '#dde2e8', line: '#c3cad3',
    shadow: 0.42, sun: [1.42, 1.36, 1.26], sky: [0.50, 0.55, 0.62], bounce: [0.30, 0.295, 0.285],
  },
  dark: {
    zenith: '#12161c', horizon: '#2a3039', nadir: '#191d24', ground: '#2b313b', check: '#323945', line: '#47505d',
    shadow: 0.55, sun: [1.50, 1.44, 1.36], sky: [0.52, 0.57, 0.66], bounce: [0.22, 0.225, 0.24],
  },
};

class WebGLRenderer {
  static create(canvas) {
    const gl = canvas.getContext('webgl2', { antialias: true, alpha: false, powerPreference: 'high-performance' });
    return gl && new WebGLRenderer(gl, canvas);
  }

  constructor(gl, canvas) {
    this.name = 'webgl2';
    this.gl = gl;
    this.canvas = canvas;
    this.world = null;
    this.build();
  }

  /* Everything that lives on the graphics card; called again after a lost context came back. */
  build() {
    const gl = this.gl;
    this.programs = {};
    for (const [name, source] of Object.entries(SHADERS)) this.programs[name] = this.program(name, source);
    this.empty = gl.createVertexArray();
    this.shadowSize = Math.min(2048, gl.getParameter(gl.MAX_TEXTURE_SIZE));
    this.shadowMap = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.shadowMap);
    gl.texStorage2D(gl.TEXTURE_2D, 1, gl.DEPTH_COMPONENT24, this.shadowSize, this.shadowSize);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_COMPARE_MODE, gl.COMPARE_REF_TO_TEXTURE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_COMPARE_FUNC, gl.LEQUAL);
    this.shadowTarget = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.shadowTarget);
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.DEPTH_ATTACHMENT, gl.TEXTURE_2D, this.shadowMap, 0);
    this.coverMap = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.coverMap);
    gl.texStorage2D(gl.TEXTURE_2D, 1 + Math.floor(Math.log2(this.shadowSize)), gl.RGBA8, this.shadowSize, this.shadowSize);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR_MIPMAP_LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, this.coverMap, 0);
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    if (this.world) this.attach(this.world);
  }

  program(name, source) {
    const gl = this.gl, program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, source.vertex], [gl.FRAGMENT_SHADER, source.fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS) && !gl.isContextLost()) throw new Error(`shader ${name}: ${gl.getShaderInfoLog(shader)}`);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) throw new Error(`program ${name}: ${gl.getProgramInfoLog(program)}`);
    const uniforms = {};
    const count = gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS) || 0;
    for (let i = 0; i < count; i++) {
      const info = gl.getActiveUniform(program, i);
      uniforms[info.name] = { at: gl.getUniformLocation(program, info.name), type: info.type };
    }
    return { program, uniforms };
  }

  use(name, values) {
    const gl = this.gl, { program, uniforms } = this.programs[name];
    gl.useProgram(program);
    for (const [key, { at, type }] of Object.entries(uniforms)) {
      const value = values[key];
      if (value === undefined && !key.endsWith('Map')) throw new Error(`uniform ${key} of ${name} has no value`);
      if (type === gl.FLOAT) gl.uniform1f(at, value);
      else if (type === gl.FLOAT_VEC2) gl.uniform2fv(at, value);
      else if (type === gl.FLOAT_VEC3) gl.uniform3fv(at, value);
      else if (type === gl.FLOAT_MAT4) gl.uniformMatrix4fv(at, false, value);
      else gl.uniform1i(at, key === 'coverMap' ? 1 : 0);
    }
  }

  buffer(data, usage) {
    const gl = this.gl, buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, data, usage);
    return buffer;
  }

  attributes(buffer, stride, list, divisor) {
    const gl = this.gl;
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    let offset = 0;
    for (const [index, size] of list) {
      gl.enableVertexAttribArray(index);
      gl.vertexAttribPointer(index, size, gl.FLOAT, false, 4 * stride, 4 * offset);
      gl.vertexAttribDivisor(index, divisor);
      offset += size;
    }
  }

  attach(world) {
    const gl = this.gl;
    this.world = world;
    const shared = new Map();
    for (const batch of world.batches) {
      const geometry = batch.geometry;
      if (!shared.has(geometry)) {
        const indices = gl.createBuffer();
        gl.bindVertexArray(null);
        gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, indices);
        gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, geometry.indices, gl.STATIC_DRAW);
        shared.set(geometry, { vertices: this.buffer(geometry.vertices, gl.STATIC_DRAW), indices });
      }
      const { vertices, indices } = shared.get(geometry);
      const array = gl.createVertexArray();
      gl.bindVertexArray(array);
      this.attributes(vertices, 6, [[0, 3], [1, 3]], 0);
      const poses = this.buffer(batch.poses, gl.DYNAMIC_DRAW), looks = this.buffer(batch.looks, gl.DYNAMIC_DRAW);
      this.attributes(poses, 7, [[2, 3], [3, 4]], 1);
      this.attributes(looks, 8, [[4, 4], [5, 4]], 1);
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, indices);
      gl.bindVertexArray(null);
      batch.gpu = { array, poses, looks };
    }
    for (const lines of world.lines) {
      const array = gl.createVertexArray();
      gl.bindVertexArray(array);
      const data = this.buffer(lines.data, gl.DYNAMIC_DRAW);
      this.attributes(data, 12, [[0, 4], [1, 4], [2, 4]], 1);
      gl.bindVertexArray(null);
      lines.gpu = { array, data };
    }
  }

  upload() {
    const gl = this.gl;
    for (const batch of this.world.batches) {
      if (!batch.moved) continue;
      gl.bindBuffer(gl.ARRAY_BUFFER, batch.gpu.poses);
      gl.bufferSubData(gl.ARRAY_BUFFER, 0, batch.poses, 0, batch.count * 7);
      if (batch.resized) {
        gl.bindBuffer(gl.ARRAY_BUFFER, batch.gpu.looks);
        gl.bufferSubData(gl.ARRAY_BUFFER, 0, batch.looks, 0, batch.count * 8);
      }
    }
    for (const lines of this.world.lines) {
      if (!lines.moved) continue;
      gl.bindBuffer(gl.ARRAY_BUFFER, lines.gpu.data);
      gl.bufferSubData(gl.ARRAY_BUFFER, 0, lines.data);
    }
  }

  solids(batches) {
    const gl = this.gl;
    for (const batch of batches) {
      gl.bindVertexArray(batch.gpu.array);
      gl.drawElementsInstanced(gl.TRIANGLES, batch.geometry.indices.length, gl.UNSIGNED_INT, 0, batch.count);
      this.drawCalls++;
      this.triangles += batch.geometry.indices.length / 3 * batch.count;
    }
  }

  /* The view of the sun: a square that just holds the sphere around what casts a shadow. */
  sunView(center, radius) {
    const back = SUN, right = vec.unit(vec.cross([0, 0, 1], back)), up = vec.cross(back, right);
    const texel = 2 * radius / this.shadowSize;
    const snap = (axis) => Math.round(vec.dot(axis, center) / texel) * texel;
    const p = vec.add(vec.add(vec.scale(right, snap(right)), vec.scale(up, snap(up))), vec.scale(back, vec.dot(back, center)));
    const view = mat.view(vec.add(p, vec.scale(back, 3 * radius)), right, up, back);
    return mat.multiply(mat.orthographic(radius, 0.5 * radius, 6 * radius), view);
  }

  draw(camera, themeName, now) {
    const gl = this.gl, world = this.world, theme = THEMES[themeName], ground = world.ground;
    if (gl.isContextLost()) return;
    this.drawCalls = 0;
    this.triangles = 0;
    this.upload();
    const shown = world.batches.filter((b) => b.layer.visible && b.count > 0);
    const opaque = shown.filter((b) => !b.translucent), clear = shown.filter((b) => b.translucent);
    const focus = world.shadowFocus(camera);
    const shadowMatrix = this.sunView(focus.center, focus.radius);
    const far = Math.max(7 * world.size, 2.2 * camera.distance);
    const values = {
      ...camera.uniforms(), sun: SUN, sunColor: theme.sun, skyLight: theme.sky, bounceLight: theme.bounce,
      zenithColor: parseColor(theme.zenith), horizonColor: parseColor(theme.horizon), nadirColor: parseColor(theme.nadir),
      groundColor: parseColor(theme.ground), checkColor: parseColor(theme.check), lineColor: parseColor(theme.line),
      groundPoint: ground.point, groundNormal: ground.normal, groundX: ground.x, groundY: ground.y,
      focus: world.onGround(camera.target), extent: 2 * far, fadeStart: 0.25 * far, fadeEnd: far, cell: ground.cell,
      checker: ground.style === 'checker' ? 1 : 0, gridLines: ground.style === 'grid' ? 1 : 0, heightRange: 2 * world.robotSize, texelSize: 2 * focus.radius / this.shadowSize,
      shadowMatrix, shadowTexel: 1 / this.shadowSize, shadowSpread: 1.25, shadowStrength: theme.shadow,
      occlusionHeight: 0.22 * world.robotSize, normalOffset: 3 * focus.radius / this.shadowSize, glow: 0, gridCell: 0,
      now, pixels: [this.canvas.width, this.canvas.height],
    };

    gl.bindFramebuffer(gl.FRAMEBUFFER, this.shadowTarget);
    gl.viewport(0, 0, this.shadowSize, this.shadowSize);
    gl.enable(gl.DEPTH_TEST);
    gl.depthMask(true);
    gl.depthFunc(gl.LEQUAL);
    gl.disable(gl.BLEND);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.enable(gl.POLYGON_OFFSET_FILL);
    gl.polygonOffset(2, 4);
    this.use('caster', { ...values, viewProjection: shadowMatrix });
    this.solids(opaque.filter((b) => b.castsShadow));
    gl.disable(gl.POLYGON_OFFSET_FILL);

    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.activeTexture(gl.TEXTURE1);
    gl.bindTexture(gl.TEXTURE_2D, this.coverMap);
    gl.generateMipmap(gl.TEXTURE_2D);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, this.shadowMap);
    gl.bindVertexArray(this.empty);
    gl.disable(gl.DEPTH_TEST);
    this.use('backdrop', values);
    gl.drawArrays(gl.TRIANGLES, 0, 3);

    gl.enable(gl.BLEND);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
    gl.enable(gl.DEPTH_TEST);
    if (ground.layer.visible) {
      gl.depthMask(camera.eyeHeight(ground) > 0);
      this.use('ground', values);
      gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
      gl.depthMask(true);
    }
    for (const group of this.groups(opaque)) {
      this.use('solid', { ...values, ...group.values });
      this.solids(group.batches);
    }
    if (clear.length) {
      /* a ghost that coincides with a solid stays behind it */
      gl.enable(gl.POLYGON_OFFSET_FILL);
      gl.polygonOffset(1, 3);
      gl.colorMask(false, false, false, false);
      this.use('depth', values);
      this.solids(clear);
      gl.colorMask(true, true, true, true);
      for (const group of this.groups(clear)) {
        this.use('solid', { ...values, ...group.values });
        this.solids(group.batches);
      }
      gl.disable(gl.POLYGON_OFFSET_FILL);
    }
    for (const lines of world.lines) {
      if (!lines.layer.visible) continue;
      if (lines.onTop) gl.disable(gl.DEPTH_TEST);
      gl.depthMask(false);
      this.use('line', { ...values, width: lines.width * camera.pixelRatio, now: lines.timed ? now : 1e30 });
      gl.bindVertexArray(lines.gpu.array);
      gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, lines.data.length / 12);
      this.drawCalls++;
      gl.depthMask(true);
      gl.enable(gl.DEPTH_TEST);
    }
    gl.bindVertexArray(null);
  }

  /* Batches that share the uniforms of their material. */
  groups(batches) {
    const groups = new Map();
    for (const batch of batches) {
      const key = `${batch.glow || 0}/${batch.gridCell || 0}`;
      if (!groups.has(key)) groups.set(key, { values: { glow: batch.glow || 0, gridCell: batch.gridCell || 0 }, batches: [] });
      groups.get(key).batches.push(batch);
    }
    return groups.values();
  }
}
