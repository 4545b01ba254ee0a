// Command stepwire-driver puts this SDK's session and run slots behind stdin and stdout, for the conformance kit.
//
// Each line on stdin is one op, and each line on stdout its reply: protocol/conformance/DRIVER.md has both. The clock is
// the time in the ops, and no socket or handler is involved: the kit plays the broker and the handlers.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriterSize(os.Stdout, 1<<20)
	if err := serve(in, out); err != nil {
		fmt.Fprintln(os.Stderr, "stepwire-driver:", err)
		os.Exit(1)
	}
}

// serve answers each line until the input ends. A fault of the session is the reply to the op that caused it.
func serve(in *bufio.Reader, out *bufio.Writer) error {
	driver := &driver{}
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			encoder := json.NewEncoder(out)
			encoder.SetEscapeHTML(false)
			if err := encoder.Encode(driver.answer(line)); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
