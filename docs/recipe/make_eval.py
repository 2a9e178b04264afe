"""Write the evaluation prompts (benchmarks/prompts.jsonl): 60 held-out prompts in OpenAI's messages format."""

import json, sys

P = []


def add(cat, *turns, system=None, tools=None):
    msgs = ([{"role": "system", "content": system}] if system else []) + [
        {"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)
    ]
    d = {"id": f"{cat}-{sum(p['category'] == cat for p in P) + 1:02d}", "category": cat, "messages": msgs}
    if tools:
        d["tools"] = tools
    P.append(d)


def tool(name, desc, **props):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": desc,
            "parameters": {
                "type": "object",
                "properties": {k: {"type": t, "description": d} for k, (t, d) in props.items()},
                "required": list(props),
            },
        },
    }


for q in [
    "Could you tell me what a decorator is good for?",
    "How would you explain generators to a colleague?",
    "Why does Python have a global interpreter lock?",
    "I keep hearing about context managers. What are they?",
    "What happens when I use a list as a default argument?",
    "Please explain closures with a short example.",
    "What makes a tuple different from a list?",
    "My program says KeyError: 'price'. What is wrong?",
]:
    add("concept", q)
for q in [
    "What is os.path.join good for?",
    "Explain what itertools.chain does, please.",
    "How can I use json.dumps?",
    "What does the bisect module offer?",
    "Please tell me what str.split does.",
    "What is collections.Counter used for?",
    "Which arguments does subprocess.run accept?",
    "What does functools.lru_cache do for me?",
    "Is there an example of textwrap.wrap?",
    "Why would I call random.shuffle?",
]:
    add("stdlib", q)
for q in [
    "Please write a function that tells whether a number is prime.",
    "I'd like a Python function that reverses a string, please.",
    "Write me a function to compute the n-th Fibonacci numbers as a list.",
    "How could I flatten a nested list? Show code.",
    "Please give me code that counts the words in a text.",
    "Write a function named gcd for the greatest common divisor.",
    "Explain what this does:\n\n```python\ndef f(items):\n    return list(dict.fromkeys(items))\n```",
    "Write a context manager that measures time.",
]:
    add("code", q)
add(
    "multi-turn",
    "What does os.path.basename do?",
    "Return the base name of pathname `path`.",
    "Where do I have to import it from?",
)
add(
    "multi-turn",
    "What is a lambda?",
    "A lambda is a small anonymous function written as a single expression.",
    "Could I see one in code?",
)
add(
    "multi-turn",
    "Hello, I'm Ravi.",
    "Hello Ravi! How can I help you?",
    "What is a set?",
    "A set is an unordered collection of distinct hashable values.",
    "By the way, do you still know my name?",
)
add(
    "multi-turn",
    "What does math.isclose do?",
    "Return `True` if the values `a` and `b` are close to each other and `False` otherwise.",
    "How exactly do I call it?",
)
add(
    "multi-turn",
    "Explain recursion.",
    "Recursion is when a function calls itself on a smaller version of the problem. A recursive function needs a base case that ends the calls and a recursive case that moves towards it.",
    "Make that shorter.",
)
add(
    "multi-turn",
    "What is the difference between a list and a set?",
    "A list keeps order and allows duplicates. A set has no order, holds each value once, and tests membership quickly.",
    "Fine, and which one should I take?",
)
add(
    "multi-turn",
    "Write a function that transposes a matrix.",
    "```python\ndef transpose(matrix):\n    return [list(row) for row in zip(*matrix)]\n```",
    "And why does this work?",
)
add(
    "multi-turn",
    "I live in Lisbon and my name is Clara.",
    "Nice to meet you, Clara!",
    "Which city do I live in?",
)
W = tool("get_weather", "Get the current weather for a city", city=("string", "The city name"))
C = tool(
    "calculator", "Evaluate an arithmetic expression", expression=("string", "The expression to evaluate")
)
D = tool("search_docs", "Search the Python documentation", query=("string", "What to search for"))
G = tool("get_time", "Get the current time in a city", city=("string", "The city name"))
add("tools", "Could you check the weather in Oslo?", tools=[W])
add("tools", "Please work out 417 * 23.", tools=[C, W])
add("tools", "Please look for asyncio.gather in the docs.", tools=[D])
add("tools", "What's the local time in Seoul?", tools=[W, G])
add("tools", "I need the weather in Rome and Athens.", tools=[W])
add("tools", "Can you explain what a dictionary is?", tools=[W, C])
add("tools", "Good day to you!", tools=[G])
P.append(
    {
        "id": "tools-08",
        "category": "tools",
        "tools": [W],
        "messages": [
            {"role": "user", "content": "Could you check the weather in Vienna?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Vienna"}'},
                    }
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": '{"city": "Vienna", "temperature": 21, "condition": "sunny"}',
            },
        ],
    }
)
for q in [
    "Please extract name and age as JSON: Vera is 61 years old and lives in Oslo.",
    "Answer as JSON with keys name and args: call math.sqrt with the argument 49.",
    "Name three fruits and answer as a JSON array.",
    "Describe json.loads as a JSON object with keys name, module and summary.",
    "Please give term and definition of a tuple as JSON.",
    "From the text 'Tom, 33, from Berlin' make JSON with the keys name, age and city.",
]:
    add("json", q)
for q in [
    "Illustrate the difference between concurrency and parallelism in Python!",
    "Please illustrate, with code, how concurrency and parallelism differ in Python.",
    "I would like a long explanation of concurrency and parallelism in Python.",
    "Explain async and await at length, with an example and a warning.",
    "Write a detailed explanation of exception handling with code.",
    "Explain in detail how classes work in the Python tutorial.",
    "Give a thorough introduction to regular expressions in Python.",
    "Tell me at length how the logging module is used.",
]:
    add("long-answer", q)
for q in ["Hello, nice to meet you!", "So who exactly are you?"]:
    add("smalltalk", q)
add("smalltalk", "Count from 3 to 14, please.")
add("smalltalk", "What is 23 + 58, please?")
P[-1]["system"] = None
del P[-1]["system"]
with open(sys.argv[1], "w") as f:
    for d in P:
        f.write(json.dumps(d, ensure_ascii=False) + "\n")
print(len(P))
