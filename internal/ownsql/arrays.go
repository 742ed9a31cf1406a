package ownsql

// Array writes texts as the literal of PostgreSQL's array, which every driver can
// send.
func Array(texts []string) string {
	size := len("{}")
	for _, t := range texts {
		size += len(t) + len(`"",`)
	}
	b := append(make([]byte, 0, size), '{')
	for i, t := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendElement(b, t)
	}
	return string(append(b, '}'))
}

// AppendElement appends a text as an element of such a literal.
func AppendElement(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}
