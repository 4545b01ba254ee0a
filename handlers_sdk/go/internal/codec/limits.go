// Package codec reads and writes the messages of the protocol. No other package handles the bytes.
package codec

import "math"

// Every limit and time of the protocol, by its name in SPEC.md, section 19.
const (
	Version = "2.0"

	IntegerMax      = 1<<53 - 1
	DepthMax        = 32
	ContainersMax   = 250_000
	MessageBytesMax = 4 * 1024 * 1024
	FrameBytesMax   = 8 * 1024 * 1024
	BatchItemsMax   = 1000
	HandlersMax     = 1000
	NameBytesMax    = 128

	HandlerVersionMax = 64
	TracestateMax     = 512

	HeartbeatMS             = 2_000
	HeartbeatMinMS          = 100
	HeartbeatJitter         = 0.10
	LeaseMS                 = 10_000
	LeaseWorkerFactor       = 0.97 // the lease ends at the worker first: a message is sent before it is received
	HelloRetryMS            = 250
	HelloRetryMaxMS         = 1_000
	HelloJitter             = 0.20
	DropWaitMS              = 250 // pause before the hello after a second drop in a row; doubles with each further one
	DropWaitMaxMS           = 5_000
	ResultsRetransmitMS     = 500
	ResultsRetransmitMaxMS  = 5_000
	ResultsBroadcastFromTry = 3
	StartRetransmitMS       = 300
	StartRetransmitMaxMS    = 3_000
	SocketRebuildMS         = 15_000
	ServerKeyRetryMS        = 5_000
	UnlistedMS              = 600_000
	TimeoutDefaultMS        = 30_000
	TombstoneMS             = 600_000
	PrefetchMin             = 10
	PrefetchMS              = 40
)

// Never is a time that does not come.
var Never = math.Inf(1)
