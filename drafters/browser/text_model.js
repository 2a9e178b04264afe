// A model that holds one text, and guesses how it goes on until it is given another one.

const CHUNK = 32; // tokens read between two looks for another request: some 0.2 s of a slow device

export class TextModel {
  // engine: wllama with a model. tell(message): to the drafter. seen(guess): { at, token, p }, for the page.
  constructor(engine, tell, seen = () => {}) {
    Object.assign(this, { engine, tell, seen, text: [], asked: null, running: false });
    this.nRead = 0; // tokens in the KV cache,
    this.nSame = 0; // of which these begin the text
  }

  // Take a request of drafters/browser_link.py.
  take({ id, keep, add, draft, stop }) {
    if (stop !== undefined) {
      if (this.asked?.id === stop) this.asked = null;
      return;
    }
    this.text.length = Math.min(this.text.length, keep);
    this.text.push(...add);
    this.nSame = Math.min(this.nSame, keep);
    this.asked = draft ? { id, left: draft } : null;
    if (this.asked && !this.running) this.run();
  }

  async run() {
    this.running = true;
    try {
      while (this.asked) await this.step(this.asked);
    } catch (error) {
      if (this.asked) this.tell({ id: this.asked.id, failed: String(error.message ?? error) });
      this.asked = null;
      this.nSame = 0;
    } finally {
      this.running = false;
    }
  }

  // Read some of the text, or guess the token after it. Another request may come at every await.
  async step(asked) {
    const start = Math.min(this.nSame, this.text.length - 1); // the last token's logits are needed
    if (this.nRead > start) {
      await (start ? this.engine.kvRemove(start, -1) : this.engine.kvClear());
      this.nRead = start;
      this.nSame = Math.min(this.nSame, start);
      if (this.asked !== asked) return;
    }
    const chunk = this.text.slice(start, start + CHUNK);
    this.nRead = this.nSame = start + chunk.length; // take() lowers the second if the text changes meanwhile
    await this.engine.decode(chunk, {});
    if (this.asked !== asked || this.nRead < this.text.length) return;
    const [{ token, p }] = await this.engine.getLogits(1);
    if (this.asked !== asked) return;
    if (this.engine.isTokenEOG(token)) return this.end(asked, true);
    this.seen({ at: this.text.length, token });
    this.text.push(token);
    this.tell({ id: asked.id, said: [[token, Math.min(1, Math.max(1e-6, p || 0.5))]] });
    if (--asked.left === 0) this.end(asked, false);
  }

  end(asked, end) {
    this.tell({ id: asked.id, end });
    this.asked = null;
  }
}
