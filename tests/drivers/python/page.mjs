// Draws a sample with the script of the status page, without a browser. Reads a JSON object with the `script` and the
// `sample` from standard input, and writes the text of each element that has an id.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const { script, sample } = JSON.parse(readFileSync(0, "utf8"));
const nothing = () => {};

/** What the script uses of an element. */
class Element {
  constructor() {
    Object.assign(this, { style: {}, dataset: {}, children: [], attributes: {}, hidden: false });
    this.classList = { toggle: nothing, add: nothing, remove: nothing };
  }
  get textContent() {
    return this.children.map((child) => (child instanceof Element ? child.textContent : String(child))).join(" ");
  }
  set textContent(text) {
    this.children = [text];
  }
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener() {}
  getBoundingClientRect() {
    return { width: 100, height: 30 };
  }
  getContext() {
    return new Proxy({}, { get: () => nothing, set: () => true });
  }
}

const elements = new Map();
const document = {
  body: new Element(),
  documentElement: new Element(),
  hidden: false,
  addEventListener: nothing,
  createElement: () => new Element(),
  getElementById(id) {
    if (!elements.has(id)) elements.set(id, new Element());
    return elements.get(id);
  },
};
const context = {
  document,
  devicePixelRatio: 1,
  addEventListener: nothing,
  setInterval: nothing,
  getComputedStyle: () => ({ getPropertyValue: () => "" }),
  matchMedia: () => ({ matches: false, addEventListener: nothing }),
  fetch: async () => ({ ok: true, json: async () => sample }),
};
vm.runInNewContext(script, context);
// The script has asked for the sample.
await new Promise((done) => setImmediate(done));
const shown = [...elements].map(([id, element]) => [id, { text: element.textContent, hidden: element.hidden }]);
console.log(JSON.stringify(Object.fromEntries(shown)));
