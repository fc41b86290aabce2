package state

import "strings"

// Component is one kind of state that a group's pages hold.
type Component uint8

// The components. Their numbers are in the encoding and never change meaning.
const (
	// AttentionKV is keys and values of full attention.
	AttentionKV Component = iota
	// LatentKV is MLA's latent and positional bytes, as one.
	LatentKV
	// IndexerState is what native sparse attention keeps beside its keys to choose among them.
	IndexerState
	// WindowKV is keys and values of sliding-window attention.
	WindowKV
	// RecurrentState is the state of an SSM or linear-attention layer at the end of a page.
	RecurrentState
	// ConvState is the convolution's state that belongs to a RecurrentState.
	ConvState
	// DraftKV is the state of a draft model in speculative decoding. It is never published as the target model's: no contract takes it.
	DraftKV

	componentCount
)

// componentNames are the components' words in scripts and errors, by number.
var componentNames = [...]string{"attention", "latent", "indexer", "sliding", "recurrent", "conv", "draft"}

// Components is a set of components: bit i is Component i. The zero value is the empty set.
type Components uint32

// Of makes a set.
func Of(cs ...Component) (s Components) {
	for _, c := range cs {
		s |= 1 << c
	}
	return s
}

// Has says whether c is in the set.
func (s Components) Has(c Component) bool { return s&(1<<c) != 0 }

// String is the set's words, with a + between.
func (s Components) String() string {
	var words []string
	for c := range componentCount {
		if s.Has(c) {
			words = append(words, componentNames[c])
		}
	}
	return strings.Join(words, "+")
}

// ParseComponents reads what String writes, in any order. An unknown word is ErrInvalid.
func ParseComponents(text string) (Components, error) {
	var s Components
	if text == "" {
		return 0, nil
	}
next:
	for word := range strings.SplitSeq(text, "+") {
		for c, name := range componentNames {
			if name == word {
				s |= 1 << c
				continue next
			}
		}
		return 0, fail(ErrInvalid, "no component is called ", word)
	}
	return s, nil
}

// Rule is which pages of a group are needed to resume at a boundary.
type Rule uint8

// The rules. Their numbers are in the encoding and never change meaning.
const (
	// RulePrefix needs every page from the engine's origin to the boundary.
	RulePrefix Rule = 1
	// RuleWindow needs the pages that hold the last Window tokens before the boundary.
	RuleWindow Rule = 2
	// RuleCheckpoint needs the page that ends exactly at the boundary: a state can be resumed only where it was taken.
	RuleCheckpoint Rule = 3
)

// allowed are the components that may follow a rule, by the rule. A group may hold any of them together, since what is in one page comes
// and goes together; a convolution's state alone is allowed, because engines put the two into groups of their own.
var allowed = [...]Components{
	RulePrefix:     1<<AttentionKV | 1<<LatentKV | 1<<IndexerState,
	RuleWindow:     1 << WindowKV,
	RuleCheckpoint: 1<<RecurrentState | 1<<ConvState,
}

// String is the rule's word: prefix, window, checkpoint.
func (r Rule) String() string {
	switch r {
	case RulePrefix:
		return "prefix"
	case RuleWindow:
		return "window"
	case RuleCheckpoint:
		return "checkpoint"
	default:
		return "no rule"
	}
}

// PastWindow translates a window as vLLM counts it, where it includes the token that is being computed, into the past tokens that a
// RuleWindow needs. A window of less than 2 has no past and needs no pages: ErrContract.
func PastWindow(window uint64) (uint64, error) {
	if window < 2 {
		return 0, fail(ErrContract, "a window needs at least one past token")
	}
	return window - 1, nil
}
