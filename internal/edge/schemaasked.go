package edge

// appendAsked writes a schema as a provider is asked with it: true and false are schemas, and Ollama takes neither but where every author writes
// them, in additionalProperties. What it writes says the same; an answer is checked against what the author wrote all the same.
func appendAsked(b []byte, n *node) []byte {
	switch {
	case n.kind == jsonBool && n.yes:
		return append(b, "{}"...)
	case n.kind == jsonBool:
		return append(b, `{"not":{}}`...)
	}
	return appendMembers(b, n, func(b []byte, k string, v *node) []byte {
		switch how := keywords[k]; {
		case how == one && (k != "additionalProperties" || v.kind != jsonBool):
			return appendAsked(b, v)
		case how == many:
			b = append(b, '[')
			for i, item := range v.items {
				if i > 0 {
					b = append(b, ',')
				}
				b = appendAsked(b, item)
			}
			return append(b, ']')
		case how == byName || how == byPattern:
			return appendMembers(b, v, func(b []byte, _ string, v *node) []byte { return appendAsked(b, v) })
		}
		return append(b, v.compact()...)
	})
}

func appendMembers(b []byte, n *node, value func(b []byte, k string, v *node) []byte) []byte {
	b = append(b, '{')
	for i, k := range n.keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = value(append(appendString(b, k), ':'), k, n.members[k])
	}
	return append(b, '}')
}
