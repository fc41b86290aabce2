package bpe

import "strconv"

// An UnsupportedError says that a tokenizer.json is well formed and asks for something that this package does not do as
// the reference implementation does it. The file cannot be used; ignoring the part would give other ids without a sign.
type UnsupportedError struct {
	Part string // where in the file, as in pre_tokenizer.pretokenizers[0].pattern
	Why  string // what it asks for
}

func (e *UnsupportedError) Error() string {
	return "tokenizer.json: " + e.Part + " is not supported: " + e.Why
}

// A FormatError says that the file is not a tokenizer.json: not JSON, a field of another type, or parts that contradict
// each other, as a merge of a token that the vocabulary lacks.
type FormatError struct {
	Part    string // where in the file; empty: the file as a whole
	Problem string
}

func (e *FormatError) Error() string {
	if e.Part == "" {
		return "tokenizer.json: " + e.Problem
	}
	return "tokenizer.json: " + e.Part + ": " + e.Problem
}

// quote is for what came from the file: it may be of any length.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}
