// Words for who guessed. drafters: as /health tells them.

const WORDS = {
  draft: "the draft model beside the model",
  lookup: "the text above",
  prediction: "the prediction that came with the request",
  grammar: "the required format",
};

export function nameOf(source, drafters = []) {
  if (source.includes(" & ")) return source.split(" & ").map((one) => nameOf(one, drafters)).join(" and ");
  return WORDS[source] ?? drafters.find(({ id }) => id === source)?.name ?? plain(source);
}

// Of a drafter that has left: its host, without what unique_id() of presence.py adds.
function plain(id) {
  return id.replace(/-\d+-[0-9a-f]{8}$/, "");
}
