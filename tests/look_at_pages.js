// Look at pages of the site as readers do: in frames of several widths, in both themes. What is wrong goes into this document.

const LEAST = 4.5;  // contrast of text with what is behind it (WCAG 2, level AA)
const OTHERS = ".headerlink, .copybtn, .search-button__kbd-shortcut, .sk-top-container, svg";  // have colours of their own
const SEEN = 1.5;  // contrast of a line of a picture that can be seen
const DESK = 1400;  // pixels from which on no code scrolls sideways
const [WIDE, HIGH] = [200, 150];  // pixels of a picture that is examined

function wait(milliseconds) {
  return new Promise((done) => setTimeout(done, milliseconds));
}

async function load(frame, url) {
  await new Promise((done) => { frame.onload = done; frame.src = url; });
  await wait(300);
}

function parse(colour) {
  const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
  const unit = colour.startsWith("color(") ? 255 : 1;
  return { rgb: [r * unit, g * unit, b * unit], a };
}

function over({ rgb, a }, behind) {
  return rgb.map((value, i) => a * value + (1 - a) * behind[i]);
}

function background(element, view, known) {
  if (!element) return [255, 255, 255];
  if (!known.has(element)) {
    const own = parse(view.getComputedStyle(element).backgroundColor);
    known.set(element, over(own, background(element.parentElement, view, known)));
  }
  return known.get(element);
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function isText(element) {
  return [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
}

function faint(article, view, known) {
  const found = [];
  for (const element of article.querySelectorAll("*")) {
    const style = view.getComputedStyle(element);
    const shown = element.getClientRects().length && style.visibility !== "hidden";
    if (!shown || !isText(element) || element.closest(OTHERS)) continue;
    const behind = background(element, view, known);
    const ratio = contrast(over(parse(style.color), behind), behind);
    if (ratio < LEAST) found.push(`contrast ${ratio.toFixed(1)} of "${element.textContent.trim().slice(0, 40)}" (${element.className})`);
  }
  return found;
}

async function lost(article, view, known) {
  const found = [];
  for (const image of article.querySelectorAll("img")) {
    image.loading = "eager";
    for (let tries = 0; tries < 50 && !(image.complete && image.naturalWidth); tries += 1) await wait(100);
    if (!image.naturalWidth) {
      found.push(`${image.src} does not load`);
      continue;
    }
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [WIDE, HIGH];
    const brush = canvas.getContext("2d");
    brush.drawImage(image, 0, 0, WIDE, HIGH);
    const behind = background(image, view, known), pixels = brush.getImageData(0, 0, WIDE, HIGH).data;
    let seen = 0;
    for (let i = 0; i < pixels.length; i += 4) {
      seen += pixels[i + 3] > 127 && contrast([...pixels.slice(i, i + 3)], behind) >= SEEN;
    }
    if (seen < 0.005 * WIDE * HIGH) found.push(`of ${image.src} ${seen} pixels are seen`);
  }
  return found;
}

function cut(article) {
  const boxes = [...article.querySelectorAll("div.highlight pre")].filter((box) => box.scrollWidth > box.clientWidth);
  return boxes.map((box) => `code scrolls sideways, ${box.scrollWidth} pixels in ${box.clientWidth}: ${box.textContent.slice(0, 40)}`);
}

async function look(pages, widths, themes) {
  const found = [];
  for (const width of widths) for (const theme of themes) {
    localStorage.setItem("mode", theme);
    localStorage.setItem("theme", theme);
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 900px; border: 0`;
    document.body.append(frame);
    for (const page of pages) {
      await load(frame, page);
      const view = frame.contentWindow, root = frame.contentDocument.documentElement;
      const article = root.querySelector(".bd-article-container") ?? root.querySelector("main");  // of the search page
      const written = !/^\/(_modules|generated)\//.test(page);  // by hand, or shown from a script
      for (const fold of article.querySelectorAll("details.drawn")) fold.open = true;
      const known = new Map();
      const wrong = [...faint(article, view, known), ...(await lost(article, view, known))];
      if (written && width >= DESK) wrong.push(...cut(article));
      if (root.dataset.theme !== theme) wrong.push(`the theme is ${root.dataset.theme}`);
      for (const box of [root, article]) {
        if (box.scrollWidth > box.clientWidth) wrong.push(`scrolls sideways, ${box.scrollWidth} pixels in ${box.clientWidth}`);
      }
      found.push(...wrong.map((each) => `${page}, ${width} pixels, ${theme}: ${each}`));
    }
    frame.remove();
  }
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
}
