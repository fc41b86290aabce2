package wire

// Kind is the kind of a message. Clients send 1 to 63, the Manager 64 to 127.
type Kind uint8

// The kinds.
const (
	KindHello       Kind = 1
	KindRegister    Kind = 2
	KindAttach      Kind = 3
	KindPublish     Kind = 4
	KindSeal        Kind = 5
	KindAbandon     Kind = 6
	KindQuery       Kind = 7
	KindPoll        Kind = 8
	KindCancel      Kind = 9
	KindStart       Kind = 10
	KindCopied      Kind = 11
	KindRelease     Kind = 12
	KindGoodbye     Kind = 13
	KindMapArenas   Kind = 14
	KindOfferPool   Kind = 15
	KindRestoreInto Kind = 16
	KindPublishFrom Kind = 17
	KindPing        Kind = 18
	// PublishPieces and RestorePieces have their numbers behind PublishFrom and RestoreInto, which know pages in one piece only.
	KindPublishPieces Kind = 19
	KindRestorePieces Kind = 20
	KindTake          Kind = 21
	KindLeave         Kind = 22
	KindFetch         Kind = 23
	KindFollow        Kind = 24

	KindWelcome    Kind = 64
	KindRegistered Kind = 65
	KindAttached   Kind = 66
	KindGranted    Kind = 67
	KindPublished  Kind = 68
	KindBusy       Kind = 69
	KindLoading    Kind = 70
	KindReady      Kind = 71
	KindCandidates Kind = 72
	KindPlan       Kind = 73
	KindSpoiled    Kind = 74
	KindRestored   Kind = 75
	KindRefused    Kind = 76
	KindArenas     Kind = 77
	KindBye        Kind = 78
	KindPong       Kind = 79
	KindClosing    Kind = 80
	KindOffered    Kind = 81
	KindCopiedIn   Kind = 82
	KindCopiedOut  Kind = 83
	KindFetched    Kind = 84
	KindFollowing  Kind = 85
)

// Message is the payload of a frame: a pointer to one of the types of this package.
type Message interface {
	Kind() Kind
	fields(c coder)
}

// Bounds of frames, in bytes. They are compared before anything is allocated.
const (
	// MaxFrame bounds the payload: 8,192 blocks of 64 tokens with their hashes are 3 MiB.
	MaxFrame = 4 << 20
	// MaxRegister bounds a registration: 64 ranks of a model with a thousand layers.
	MaxRegister = 16 << 20
	// MaxShort bounds what has no list, and what is said before the peers know each other.
	MaxShort = 4 << 10
)

// MaxLength is the longest payload of the kind, in bytes; of unknown ones MaxFrame, since they may be skipped.
func (k Kind) MaxLength() uint32 {
	switch k {
	case KindRegister:
		return MaxRegister
	case KindHello, KindAttach, KindPoll, KindCancel, KindStart, KindCopied, KindRelease, KindGoodbye, KindOfferPool, KindPing, KindTake, KindLeave,
		KindWelcome, KindAttached, KindPublished, KindBusy, KindLoading, KindSpoiled, KindRestored, KindRefused, KindBye, KindPong, KindClosing,
		KindOffered, KindCopiedOut, KindFetched, KindFollowing:
		return MaxShort
	}
	return MaxFrame
}

// newMessage returns an empty message of the kind, or nil.
func newMessage(k Kind) Message {
	if int(k) < len(makers) && makers[k] != nil {
		return makers[k]()
	}
	return nil
}

func maker[T any, P interface {
	*T
	Message
}]() Message {
	return P(new(T))
}

var makers = [...]func() Message{
	KindHello: maker[Hello], KindRegister: maker[Register], KindAttach: maker[Attach], KindPublish: maker[Publish], KindSeal: maker[Seal],
	KindAbandon: maker[Abandon], KindQuery: maker[Query], KindPoll: maker[Poll], KindCancel: maker[Cancel], KindStart: maker[Start],
	KindCopied: maker[Copied], KindRelease: maker[Release], KindGoodbye: maker[Goodbye], KindMapArenas: maker[MapArenas],
	KindOfferPool: maker[OfferPool], KindRestoreInto: maker[RestoreInto], KindPublishFrom: maker[PublishFrom], KindPing: maker[Ping],
	KindWelcome: maker[Welcome], KindRegistered: maker[Registered], KindAttached: maker[Attached], KindGranted: maker[Granted],
	KindPublished: maker[Published], KindBusy: maker[Busy], KindLoading: maker[Loading], KindReady: maker[Ready],
	KindCandidates: maker[Candidates], KindPlan: maker[Plan], KindSpoiled: maker[Spoiled], KindRestored: maker[Restored],
	KindRefused: maker[Refused], KindArenas: maker[Arenas], KindBye: maker[Bye], KindPong: maker[Pong], KindClosing: maker[Closing],
	KindPublishPieces: maker[PublishPieces], KindRestorePieces: maker[RestorePieces], KindTake: maker[Take], KindLeave: maker[Leave],
	KindOffered: maker[Offered], KindCopiedIn: maker[CopiedIn], KindCopiedOut: maker[CopiedOut],
	KindFetch: maker[Fetch], KindFetched: maker[Fetched], KindFollow: maker[Follow], KindFollowing: maker[Following],
}
