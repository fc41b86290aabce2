package body

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pair is one member of an object as the naive model reads it.
type pair struct {
	key        string // decoded
	raw, value string // the name with its quotes, and the value, as they stand
}

// pairsOf reads the members of an object with encoding/json; ok is false when b is not one valid object.
func pairsOf(b []byte) (pairs []pair, ok bool) {
	if !json.Valid(b) || len(bytes.TrimSpace(b)) == 0 || bytes.TrimSpace(b)[0] != '{' {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	_, _ = dec.Token()
	for dec.More() {
		before := dec.InputOffset()
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		raw := strings.TrimLeft(string(b[before:dec.InputOffset()]), " \t\r\n,")
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false
		}
		pairs = append(pairs, pair{key.(string), raw, string(value)})
	}
	return pairs, true
}

// nesting is the deepest level of valid JSON.
func nesting(b []byte) int {
	d, deepest, in := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case in && c == '\\':
			i++
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			d++
			deepest = max(deepest, d)
		case c == '}' || c == ']':
			d--
		}
	}
	return deepest
}

// modelFacts is what the naive model reads: the part of Facts that has no offsets.
type modelFacts struct {
	Model, RID                     string
	Stream, FanOut                 bool
	MaxTokens, MaxCompletionTokens Count
	IncludeUsage                   bool
	Prompt                         PromptFacts
	Keys                           Keys
}

func simplify(f *Facts) modelFacts {
	return modelFacts{string(f.Model), string(f.RID), f.Stream, f.FanOut, f.MaxTokens, f.MaxCompletionTokens,
		f.IncludeUsage, f.Prompt, f.Keys()}
}

// anyFault is the model's answer when it does not say which.
const anyFault Class = 255

// model is Scan, slowly: everything is decoded by encoding/json, member by member.
func model(b []byte, kind Kind) (m modelFacts, class Class, key string) {
	if !json.Valid(b) || !utf8.Valid(b) {
		return m, anyFault, ""
	}
	if nesting(b) > MaxDepth {
		return m, anyFault, ""
	}
	pairs, ok := pairsOf(b)
	if !ok {
		return m, ErrNotObject, ""
	}
	values := map[Key]string{}
	for _, p := range pairs {
		k, ok := KeyNamed(p.key)
		if !ok {
			continue
		}
		if _, twice := values[k]; twice {
			return m, ErrDuplicateKey, p.key
		}
		values[k] = p.value
		m.Keys |= KeysOf(k)
		if class, key := modelMember(&m, kind, k, p.value); class != 0 {
			return m, class, key
		}
	}
	m.FanOut = modelFansOut(values[N]) || modelFansOut(values[BestOf])
	quarter := max(1, len(b)/4)
	switch {
	case values[Model] == "" || values[Model] == "null":
		return m, ErrMissingModel, ""
	case m.Prompt.Kind != PromptNone:
	case kind == Chat:
		m.Prompt = PromptFacts{PromptMessages, false, 1, quarter, quarter}
	case values[PromptEmbeds] != "" && values[PromptEmbeds] != "null":
		m.Prompt = PromptFacts{PromptVectors, false, 1, quarter, quarter}
	default:
		return m, ErrMissingPrompt, ""
	}
	return m, 0, ""
}

var loneEscape = regexp.MustCompile(`(?i)\\ud[89a-f]`)

// modelText decodes a string; lone says that half a surrogate pair is in it.
func modelText(value string) (text string, lone, ok bool) {
	if value[0] != '"' || json.Unmarshal([]byte(value), &text) != nil {
		return "", false, false
	}
	// encoding/json writes U+FFFD for a lone half. Those that stand in the text as themselves are not counted.
	plain := strings.Count(value, "\uFFFD") + len(regexp.MustCompile(`(?i)\\ufffd`).FindAllString(strings.ReplaceAll(value, `\\`, ``), -1))
	return text, loneEscape.MatchString(strings.ReplaceAll(value, `\\`, ``)) && strings.Count(text, "\uFFFD") > plain, true
}

func modelMember(m *modelFacts, kind Kind, k Key, value string) (Class, string) {
	null := value == "null"
	switch k {
	case Model, RID:
		text, lone, ok := modelText(value)
		switch {
		case lone:
			return ErrUTF8, ""
		case ok && k == Model:
			m.Model = text
		case ok:
			m.RID = text
		case k == Model && !null:
			return ErrWrongType, k.String()
		}
	case Stream:
		if value != "true" && value != "false" && !null {
			return ErrWrongType, k.String()
		}
		m.Stream = value == "true"
	case MaxTokens, MaxCompletionTokens:
		n, err := strconv.ParseUint(value, 10, 64)
		if !null && (err != nil || n > math.MaxInt64) {
			return ErrWrongType, k.String()
		}
		count := Count{N: int64(n), Known: !null}
		if k == MaxTokens {
			m.MaxTokens = count
		} else {
			m.MaxCompletionTokens = count
		}
	case StreamOptions:
		return modelOptions(m, value)
	case Prompt:
		if kind == Completion && !null {
			return modelPrompt(&m.Prompt, value)
		}
	}
	return 0, ""
}

func modelOptions(m *modelFacts, value string) (Class, string) {
	if value == "null" {
		return 0, ""
	}
	pairs, ok := pairsOf([]byte(value))
	if !ok {
		return ErrWrongType, "stream_options"
	}
	seen := false
	for _, p := range pairs {
		if p.key != "include_usage" {
			continue
		}
		if seen {
			return ErrDuplicateKey, "stream_options.include_usage"
		}
		seen = true
		if p.value != "true" && p.value != "false" && p.value != "null" {
			return ErrWrongType, "stream_options.include_usage"
		}
		m.IncludeUsage = p.value == "true"
	}
	return 0, ""
}

func modelPrompt(p *PromptFacts, value string) (Class, string) {
	var list []json.RawMessage
	if value[0] == '"' {
		p.Kind = PromptText
		list = []json.RawMessage{json.RawMessage(value)}
	} else if json.Unmarshal([]byte(value), &list) != nil {
		return ErrWrongType, "prompt"
	} else if len(list) == 0 {
		return ErrMissingPrompt, ""
	}
	add := func(tokens int) {
		p.Count++
		p.Total += tokens
		p.Longest = max(p.Longest, tokens)
	}
	switch first := list[0][0]; {
	case first == '"':
		if value[0] != '"' {
			p.Kind = PromptTexts
		}
		for _, raw := range list {
			var text string
			if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
				return ErrWrongType, "prompt"
			}
			add(max(1, len(text)/4))
		}
	case first == '[':
		p.Kind, p.Exact = PromptIDLists, true
		for _, raw := range list {
			var ids []json.RawMessage
			if raw[0] != '[' || json.Unmarshal(raw, &ids) != nil || !areIDs(ids) {
				return ErrWrongType, "prompt"
			}
			add(len(ids))
		}
	default:
		if !areIDs(list) {
			return ErrWrongType, "prompt"
		}
		p.Kind, p.Exact = PromptIDs, true
		add(len(list))
	}
	return 0, ""
}

func areIDs(list []json.RawMessage) bool {
	for _, raw := range list {
		if _, err := strconv.ParseUint(string(raw), 10, 32); err != nil {
			return false
		}
	}
	return true
}

func modelFansOut(value string) bool {
	if value == "" || value == "null" {
		return false
	}
	n, ok := modelNumber(value)
	return !ok || n > 1
}

var (
	decimalText = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)
	underscore  = regexp.MustCompile(`([0-9])_([0-9])`)
)

// modelNumber is ReadNumber by regular expressions.
func modelNumber(value string) (float64, bool) {
	switch value[0] {
	case 't':
		return 1, true
	case 'f':
		return 0, true
	case 'n', '[', '{':
		return 0, false
	case '"':
		var text string
		if json.Unmarshal([]byte(value), &text) != nil || len(text) > 64 {
			return 0, false
		}
		if strings.Contains(text, "_") {
			text = underscore.ReplaceAllString(underscore.ReplaceAllString(text, "$1$2"), "$1$2")
		} else {
			text = strings.Trim(text, " \t\n\v\f\r")
		}
		if !decimalText.MatchString(text) {
			return 0, false
		}
		value = text
	default:
		if len(value) > 256 {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(value, 64)
	return v, err == nil
}
