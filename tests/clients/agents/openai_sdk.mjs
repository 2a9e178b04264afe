// OpenAI's SDK leaves a background response, goes on with it in both of its ways, and cancels another one.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const asked = { model: 'default', input: 'hello there', background: true };
let text = '', cursor = -1, id = '';
for await (const event of await client.responses.create({ ...asked, max_output_tokens: 30, stream: true })) {
  cursor = event.sequence_number;
  if (event.type === 'response.created') id = event.response.id;
  if (event.type === 'response.output_text.delta') {
    text += event.delta;
    break;
  }
}
const left = cursor;
for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: left })) {
  if (event.sequence_number !== cursor + 1) throw new Error(`${event.sequence_number} after ${cursor}`);
  cursor = event.sequence_number;
  if (event.type === 'response.output_text.delta') text += event.delta;
}
const numbers = [];
for await (const event of client.responses.stream({ response_id: id, starting_after: left })) {
  numbers.push(event.sequence_number);
}
const whole = await client.responses.retrieve(id);
const running = await client.responses.create({ ...asked, ignore_eos: true });
const { status } = await client.responses.cancel(running.id);
await client.responses.delete(running.id);
const gone = await client.responses.retrieve(running.id).catch((error) => error.status);
const follows = numbers[0] === left + 1 && numbers.at(-1) === cursor;
console.log(JSON.stringify({ same: whole.output_text === text, follows, status, gone }));
