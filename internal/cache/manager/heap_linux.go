package manager

// HeapGrowth is by how much, in percent, a Manager's heap may grow before it is collected, as debug.SetGCPercent takes it: by 1 MiB, less than which the runtime does not
// allow, which is what 20,000 blocks leave behind that are published and restored. What is kept of each block is not in it (see tables), so that it is two MiB or three whatever
// the pool's size, and a collection takes less than a millisecond of a processor; with gateways that listen, it has what they were told.
const HeapGrowth = 25
