// Package explain is the decision log: a bounded memory of recent requests and of how their engines were picked.
//
// It promises that asking costs the asker and not the request: an [Entry] keeps what selection took down as it is, in
// memory that is used again, and is rendered to a [Record] only when somebody asks; whoever asks holds one entry at a time. A request is in the log from its first
// selection on, so one that hangs can be explained while it hangs. The log holds engine ids and addresses: it belongs on
// the admin listener.
package explain
