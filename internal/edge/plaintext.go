package edge

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// isSpace reports whether r separates words: Unicode's white space, and the four separators of ASCII.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// isControl reports whether r is a control character, C0, C1 or DEL, other than tab and line ends.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r'
}

// clean takes control characters out of what a model said, and white space from its ends.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if isControl(r) {
			return -1
		}
		return r
	}, s)
	return strings.TrimFunc(s, isSpace)
}

// collapse makes every run of white space one space, and takes it from the ends.
func collapse(s string) string {
	return strings.Join(strings.FieldsFunc(s, isSpace), " ")
}

// labelKey is the form in which the labels of a closed set are compared.
func labelKey(s string) string { return fold(collapse(s)) }

// length is a text's length as contracts count it: in Unicode code points.
func length(s string) int { return utf8.RuneCountInString(s) }

// unspaced are scripts in which words, or their endings, follow one another without a space, so that a word may begin after any letter.
var unspaced = []*unicode.RangeTable{
	unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar, unicode.Tibetan,
}

// inWord reports whether r belongs to a word that a space or a mark would have to end.
func inWord(r rune) bool {
	return (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r)) && !unicode.In(r, unspaced...)
}

// standsAlone reports whether s[from:to] begins and ends where words do.
func standsAlone(s string, from, to int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:from])
	first, _ := utf8.DecodeRuneInString(s[from:])
	last, _ := utf8.DecodeLastRuneInString(s[:to])
	after, _ := utf8.DecodeRuneInString(s[to:])
	cut := from > 0 && inWord(before) && inWord(first) || to < len(s) && inWord(last) && inWord(after)
	return !cut
}
