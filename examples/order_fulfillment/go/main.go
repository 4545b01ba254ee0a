// The worker of orders.reserve: it takes items from the stock.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/stepwire/stepwire/handlers_sdk/go"
)

type Item struct {
	SKU      string `json:"sku" stepwire:"required"`
	Quantity int64  `json:"quantity" stepwire:"required"`
}

type Reserved struct {
	Reservation string `json:"reservation"`
}

func reserve(ctx context.Context, step *stepwire.Step[Item]) (Reserved, error) {
	step.Log.Infof("reserving %d of %s", step.Input.Quantity, step.Input.SKU)
	reservation := fmt.Sprintf("R-%d-%s-%d", step.TaskID, step.Input.SKU, step.Input.Quantity)
	return Reserved{Reservation: reservation}, nil
}

func main() {
	worker, err := stepwire.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	stepwire.Handle(worker, "orders.reserve", reserve)
	if err := worker.Run(); err != nil {
		log.Fatal(err)
	}
}
