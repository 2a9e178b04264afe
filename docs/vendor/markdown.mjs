import { fromMarkdown } from "mdast-util-from-markdown";
import { gfm } from "micromark-extension-gfm";
import { gfmFromMarkdown } from "mdast-util-gfm";
import { math } from "micromark-extension-math";
import { mathFromMarkdown } from "mdast-util-math";
const extensions = [gfm(), math({ singleDollarTextMath: false })];
const mdastExtensions = [gfmFromMarkdown(), mathFromMarkdown()];
export const parse = (text) => fromMarkdown(text, { extensions, mdastExtensions });
