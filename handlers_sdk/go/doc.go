// Package stepwire runs handlers: functions that do the work of one step of a workflow. A program with handlers is a
// worker, which connects to brokers and runs the steps that they send.
//
//	type Order struct {
//		OrderID int64 `json:"order_id"`
//	}
//
//	func ship(ctx context.Context, step *stepwire.Step[Order]) (map[string]string, error) {
//		return map[string]string{"tracking": fmt.Sprint("T", step.Input.OrderID)}, nil
//	}
//
//	func main() {
//		worker, err := stepwire.FromEnv()
//		if err != nil {
//			log.Fatal(err)
//		}
//		stepwire.Handle(worker, "ship_order", ship)
//		if err := worker.Run(); err != nil {
//			log.Fatal(err)
//		}
//	}
//
// The package stepwiretest runs a handler without a broker.
package stepwire

// Version is the version of this SDK.
const Version = "0.1.0"
