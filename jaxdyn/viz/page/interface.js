/* The panels over the picture: heading, legend, transport, labels, keys. Text goes in through textContent only. */

const SPEEDS = [0.05, 0.1, 0.25, 0.5, 1, 2, 4];

const KEYS = [
  ['Space', 'play or pause'], ['\u2190 \u2192', 'one frame back or forth (with shift: ten)'], ['Home End', 'first or last frame'], ['+ -', 'faster or slower'],
  ['F', 'the camera follows the robot'], ['R', 'reset the view'], ['1 2 3', 'from the front, the side, above'],
  ['C', 'contact forces'], ['X', 'coordinate frames'], ['H', 'ghosts'], ['G', 'ground'], ['L', 'labels'],
  ['T', 'light or dark'], ['U', 'hide the panels'], ['S', 'save a picture'],
  ['Drag', 'turn (one finger)'], ['Shift drag', 'move (right button, two fingers)'], ['Wheel', 'nearer or farther (pinch)'],
];

const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

class Interface {
  constructor(player) {
    this.player = player;
    this.world = player.world;
    this.start = player.start;
    this.span = player.end - player.start;
    this.digits = this.span < 20 ? 3 : this.span < 200 ? 2 : 1;
    if (!(this.span > 0)) byId('stage').classList.add('still');
    this.buildLegend();
    this.buildTransport();
    this.buildKeys();
    this.readouts = this.world.data.readouts.map((r) => {
      const value = document.createTextNode('');
      byId('readouts').append(element('dt', { textContent: r.name }), element('dd', {}, value, element('span', { textContent: r.unit })));
      return { times: this.world.archive.read(r.times), values: this.world.archive.read(r.values), digits: r.digits, value };
    });
    this.labelLayers = this.world.layers.filter((layer) => layer instanceof LabelsLayer);
    for (const layer of this.labelLayers) {
      layer.nodes = layer.items.map((item) => byId('labels').appendChild(element('div', { className: 'label', textContent: item.text })));
    }
  }

  buildLegend() {
    const list = byId('legend').firstElementChild;
    const layers = [...this.world.layers, this.world.ground.layer];
    const shapes = { forces: 'arrow', trace: 'line', frames: 'axes' };
    this.toggles = layers.map((layer) => {
      const swatch = element('span', { className: `swatch ${shapes[layer.kind] || ''}` });
      swatch.style.background = layer.swatch;
      const button = element('button', { type: 'button', title: `${layer.name}: show or hide` }, swatch, element('span', { className: 'name', textContent: layer.name }));
      if (layer.data.detail) button.append(element('span', { className: 'detail', textContent: layer.data.detail }));
      button.addEventListener('click', () => this.toggle([layer]));
      list.append(element('li', {}, button));
      return { layer, button };
    });
    this.showToggles();
  }

  toggle(layers) {
    const visible = !layers.some((layer) => layer.visible);
    for (const layer of layers) layer.visible = visible;
    this.showToggles();
    this.player.invalidate();
  }

  toggleKind(kind) { this.toggle(this.toggles.map(({ layer }) => layer).filter((layer) => layer.kind === kind)); }

  showToggles() { for (const { layer, button } of this.toggles) button.setAttribute('aria-pressed', String(layer.visible)); }

  buildTransport() {
    const player = this.player;
    byId('end').textContent = ` / ${player.end.toFixed(this.digits)} s`;
    byId('play').addEventListener('click', () => player.toggle());
    this.slider = byId('slider');
    this.slider.addEventListener('input', () => { player.pause(); player.seek(this.start + this.slider.value * this.span); });
    const select = byId('speed');
    const speeds = SPEEDS.includes(player.speed) ? SPEEDS : [...SPEEDS, player.speed].sort((a, b) => a - b);
    this.speeds = speeds;
    for (const speed of speeds) select.append(element('option', { value: speed, textContent: `${speed}\u00d7`, selected: speed === player.speed }));
    select.addEventListener('change', () => { player.speed = Number(select.value); byId('canvas').focus(); });
    byId('follow').addEventListener('click', () => player.setFollow(!player.follow));
    byId('home').addEventListener('click', () => player.home());
    byId('theme').addEventListener('click', () => player.setTheme(player.theme === 'light' ? 'dark' : 'light'));
    byId('help').addEventListener('click', () => this.showKeys());
    this.events = this.world.data.events.map((event) => {
      const at = `${100 * (event.time - this.start) / (this.span || 1)}%`;
      const tick = element('i', { title: event.text }), text = element('span', { textContent: event.text });
      tick.style.left = text.style.left = at;
      byId('events').append(tick, text);
      return { ...event, text };
    });
  }

  buildKeys() {
    const list = byId('keys').querySelector('dl');
    for (const [keys, meaning] of KEYS) {
      const parts = keys === 'Shift drag' ? [keys] : keys.split(' ');
      list.append(element('dt', {}, ...parts.flatMap((k) => [element('kbd', { textContent: k }), ' '])), element('dd', { textContent: meaning }));
    }
    byId('keys').addEventListener('click', () => { byId('keys').hidden = true; });
    const player = this.player;
    const actions = {
      ' ': () => player.toggle(), Home: () => player.jump(player.start), End: () => player.jump(player.end),
      ArrowLeft: (event) => player.stepBy(event.shiftKey ? -10 : -1), ArrowRight: (event) => player.stepBy(event.shiftKey ? 10 : 1),
      '+': () => this.changeSpeed(1), '=': () => this.changeSpeed(1), '-': () => this.changeSpeed(-1),
      f: () => player.setFollow(!player.follow), r: () => player.home(), t: () => player.setTheme(player.theme === 'light' ? 'dark' : 'light'),
      1: () => player.view(0, 0.05), 2: () => player.view(-Math.PI / 2, 0.05), 3: () => player.view(-Math.PI / 2, 1.5533),
      c: () => this.toggleKind('forces'), x: () => this.toggleKind('frames'), h: () => this.toggleKind('ghost'), g: () => this.toggleKind('ground'), l: () => this.toggleKind('labels'),
      u: () => byId('stage').classList.toggle('bare'), s: () => player.savePicture(), '?': () => this.showKeys(), Escape: () => { byId('keys').hidden = true; },
    };
    window.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === 'SELECT') return;
      if (event.key === ' ' && event.target.tagName === 'BUTTON') return;
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action(event);
    });
  }

  showKeys() { byId('keys').hidden = !byId('keys').hidden; }

  changeSpeed(direction) {
    const i = clamp(this.speeds.indexOf(this.player.speed) + direction, 0, this.speeds.length - 1);
    this.player.speed = this.speeds[i];
    byId('speed').value = String(this.speeds[i]);
  }

  /* Brings the panels up to date with the player. */
  show(time, width, height) {
    const fraction = this.span > 0 ? (time - this.start) / this.span : 0;
    if (document.activeElement !== this.slider || this.player.playing) this.slider.value = fraction;
    this.slider.setAttribute('aria-valuetext', `${(time - 0).toFixed(this.digits)} s`);
    byId('progress').style.width = `${100 * fraction}%`;
    byId('now').textContent = time.toFixed(this.digits);
    byId('stage').classList.toggle('playing', this.player.playing);
    byId('follow').setAttribute('aria-pressed', String(this.player.follow));
    for (const event of this.events) event.text.classList.toggle('on', Math.abs(time - event.time) < 0.04 * this.span);
    for (const r of this.readouts) {
      const [i, j, f] = bracket(r.times, time);
      r.value.data = mix(r.values[i], r.values[j], f).toFixed(r.digits);
    }
    for (const layer of this.labelLayers) {
      const points = layer.visible ? layer.positions(time) : [];
      layer.nodes.forEach((node, i) => {
        const at = points[i] && this.player.camera.toScreen(points[i], width, height);
        node.style.display = at ? '' : 'none';
        if (at) node.style.transform = `translate(${Math.round(at[0] - node.offsetWidth / 2)}px, ${Math.round(at[1] - node.offsetHeight / 2)}px)`;
      });
    }
  }

  message(text, quiet = false) {
    const node = byId('message');
    node.textContent = text;
    node.classList.toggle('quiet', quiet);
    node.hidden = !text;
  }
}
