package planning

// Reason is why evidence is not used. The zero value is Chosen: it is.
type Reason uint8

// The reasons.
const (
	Chosen Reason = iota
	// NotFound: nobody is known to have the page. That a directory names nobody proves nothing about who has it.
	NotFound
	// NotEvidence: it is of another page, or lacks what evidence has.
	NotEvidence
	// NeedsGrant: it is in a device's memory, which is a source only under a grant of its engine; that an address is known is none.
	NeedsGrant
	// Crowded: better evidence has the place.
	Crowded
	// OtherTokens: the page covers other tokens than the ones that are wanted.
	OtherTokens
	// OtherFormat: it is stored in another representation than the layout has, and nothing converts.
	OtherFormat
	// TooOld: it was heard too long ago.
	TooOld
	// NoRoute: this binary, or this query, has no way to read it.
	NoRoute
)

// String says it for people.
func (r Reason) String() string {
	switch r {
	case Chosen:
		return "chosen"
	case NotFound:
		return "nobody is known to have it"
	case NotEvidence:
		return "no evidence of this page"
	case NeedsGrant:
		return "in a device's memory, without a grant"
	case Crowded:
		return "better evidence has the place"
	case OtherTokens:
		return "covers other tokens"
	case OtherFormat:
		return "in another format"
	case TooOld:
		return "heard of too long ago"
	case NoRoute:
		return "there is no way to read it"
	default:
		return "no reason"
	}
}
