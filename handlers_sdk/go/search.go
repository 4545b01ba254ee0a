package stepwire

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

// When to report that no broker answers: after three seconds, then at growing intervals.
var reportAfterMS = []float64{3_000, 10_000, 30_000, 60_000}

const reportEveryMS = 300_000 // after those

// brokerSearch knows since when links have no session, and when to report that next.
type brokerSearch struct {
	reportAtMS float64
	report     func(link session.Link, seconds int)
	sinceMS    float64
	reports    int
}

// update notes the links without a session, after each change and at reportAtMS. It reports the first when due.
func (s *brokerSearch) update(closed []session.Link, nowMS float64) {
	if len(closed) == 0 {
		s.reportAtMS = session.Never
		s.reports = 0
		return
	}
	if s.reportAtMS == session.Never {
		s.sinceMS = nowMS
		s.reportAtMS = nowMS + reportAfterMS[0]
	}
	if nowMS < s.reportAtMS {
		return
	}
	s.reports++
	waits := nowMS - s.sinceMS + reportEveryMS
	if s.reports < len(reportAfterMS) {
		waits = reportAfterMS[s.reports]
	}
	s.reportAtMS = s.sinceMS + waits
	// In a goroutine, because resolving a name or connecting can take seconds, and heartbeats must continue.
	go s.report(closed[0], int(math.Round((nowMS-s.sinceMS)/1000)))
}
