package stepwire

import (
	"os"
	"os/signal"
	"syscall"
)

// Run connects and runs until a signal ends the worker. TERM and INT drain; a second INT exits at once with code 130.
// After TSTP the worker accepts no new steps.
func (w *Worker) Run() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGTSTP)
	defer signal.Stop(signals)
	if err := w.Start(); err != nil {
		return err
	}
	loop := w.started()
	interrupts := 0
	for {
		select {
		case <-loop.ended:
			return loop.fault
		case received := <-signals:
			if received == syscall.SIGTSTP {
				w.Quiet()
				continue
			}
			if received == syscall.SIGINT {
				if interrupts++; interrupts > 1 {
					os.Exit(130)
				}
			}
			w.Drain(DrainDefault)
		}
	}
}
