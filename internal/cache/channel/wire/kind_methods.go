package wire

// Kind implements Message.
func (*Hello) Kind() Kind { return KindHello }

// Kind implements Message.
func (*Register) Kind() Kind { return KindRegister }

// Kind implements Message.
func (*Attach) Kind() Kind { return KindAttach }

// Kind implements Message.
func (*Publish) Kind() Kind { return KindPublish }

// Kind implements Message.
func (*Seal) Kind() Kind { return KindSeal }

// Kind implements Message.
func (*Abandon) Kind() Kind { return KindAbandon }

// Kind implements Message.
func (*Query) Kind() Kind { return KindQuery }

// Kind implements Message.
func (*Poll) Kind() Kind { return KindPoll }

// Kind implements Message.
func (*Cancel) Kind() Kind { return KindCancel }

// Kind implements Message.
func (*Start) Kind() Kind { return KindStart }

// Kind implements Message.
func (*Copied) Kind() Kind { return KindCopied }

// Kind implements Message.
func (*Release) Kind() Kind { return KindRelease }

// Kind implements Message.
func (*Goodbye) Kind() Kind { return KindGoodbye }

// Kind implements Message.
func (*MapArenas) Kind() Kind { return KindMapArenas }

// Kind implements Message.
func (*OfferPool) Kind() Kind { return KindOfferPool }

// Kind implements Message.
func (*RestoreInto) Kind() Kind { return KindRestoreInto }

// Kind implements Message.
func (*PublishFrom) Kind() Kind { return KindPublishFrom }

// Kind implements Message.
func (*Ping) Kind() Kind { return KindPing }

// Kind implements Message.
func (*PublishPieces) Kind() Kind { return KindPublishPieces }

// Kind implements Message.
func (*RestorePieces) Kind() Kind { return KindRestorePieces }

// Kind implements Message.
func (*Take) Kind() Kind { return KindTake }

// Kind implements Message.
func (*Leave) Kind() Kind { return KindLeave }

// Kind implements Message.
func (*Welcome) Kind() Kind { return KindWelcome }

// Kind implements Message.
func (*Registered) Kind() Kind { return KindRegistered }

// Kind implements Message.
func (*Attached) Kind() Kind { return KindAttached }

// Kind implements Message.
func (*Granted) Kind() Kind { return KindGranted }

// Kind implements Message.
func (*Published) Kind() Kind { return KindPublished }

// Kind implements Message.
func (*Busy) Kind() Kind { return KindBusy }

// Kind implements Message.
func (*Loading) Kind() Kind { return KindLoading }

// Kind implements Message.
func (*Ready) Kind() Kind { return KindReady }

// Kind implements Message.
func (*Candidates) Kind() Kind { return KindCandidates }

// Kind implements Message.
func (*Plan) Kind() Kind { return KindPlan }

// Kind implements Message.
func (*Spoiled) Kind() Kind { return KindSpoiled }

// Kind implements Message.
func (*Restored) Kind() Kind { return KindRestored }

// Kind implements Message.
func (*Refused) Kind() Kind { return KindRefused }

// Kind implements Message.
func (*Arenas) Kind() Kind { return KindArenas }

// Kind implements Message.
func (*Bye) Kind() Kind { return KindBye }

// Kind implements Message.
func (*Pong) Kind() Kind { return KindPong }

// Kind implements Message.
func (*Closing) Kind() Kind { return KindClosing }

// Kind implements Message.
func (*Offered) Kind() Kind { return KindOffered }

// Kind implements Message.
func (*CopiedIn) Kind() Kind { return KindCopiedIn }

// Kind implements Message.
func (*CopiedOut) Kind() Kind { return KindCopiedOut }

// Kind implements Message.
func (*Fetch) Kind() Kind { return KindFetch }

// Kind implements Message.
func (*Fetched) Kind() Kind { return KindFetched }

// Kind implements Message.
func (*Follow) Kind() Kind { return KindFollow }

// Kind implements Message.
func (*Following) Kind() Kind { return KindFollowing }
