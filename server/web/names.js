// Names of the sources of guesses. drafters: as in /health.

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

// Return the host of a drafter that has left: its id without the suffix of unique_id() in presence.py.
function plain(id) {
  return id.replace(/-\d+-[0-9a-f]{8}$/, "");
}
