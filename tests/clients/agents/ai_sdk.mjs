// The AI SDK's default OpenAI provider, which speaks the Responses API: a call of a tool, its result, a second turn.
import { createOpenAI } from '@ai-sdk/openai';
import { stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const openai = createOpenAI({ baseURL: process.argv[2], apiKey: 'none' });
const greet = tool({
  description: 'Greets.',
  inputSchema: z.object({ whom: z.string() }),
  execute: async ({ whom }) => `hi from here, ${whom}`,
});
const asked = { model: openai('default'), tools: { greet }, stopWhen: stepCountIs(4) };
const messages = [{ role: 'user', content: 'Greet Anna' }];
const first = streamText({ ...asked, messages });
let text = '';
for await (const part of first.textStream) text += part;
messages.push(...(await first.response).messages, { role: 'user', content: 'And Bert' });
const second = streamText({ ...asked, messages });
for await (const part of second.textStream) text += part;
console.log(text);
