// pretty returns a text with line ends and indents if it is an object or an
// array of JSON, else the text itself. It moves the tokens and leaves them as
// they are: numbers of many digits, doubled names and their order stay.
export function pretty(text) {
  const first = text.trimStart()[0];
  if (first !== "{" && first !== "[") return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s{}[\]:,"]+/g);
  let out = "", depth = 0;
  const line = () => (out += "\n" + "  ".repeat(Math.min(depth, 40))); // deeper ones are rare, and long
  tokens.forEach((token, i) => {
    switch (token) {
      case "{": case "[":
        out += token;
        depth++;
        if (tokens[i + 1] !== "}" && tokens[i + 1] !== "]") line();
        break;
      case "}": case "]":
        depth--;
        if (tokens[i - 1] !== "{" && tokens[i - 1] !== "[") line();
        out += token;
        break;
      case ",":
        out += token;
        line();
        break;
      case ":":
        out += ": ";
        break;
      default:
        out += token;
    }
  });
  return out;
}
