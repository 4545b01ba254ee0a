module example.com/order_fulfillment

go 1.19

require github.com/stepwire/stepwire/handlers_sdk/go v0.0.0

require github.com/pebbe/zmq4 v1.4.0 // indirect

replace github.com/stepwire/stepwire/handlers_sdk/go => ../../../handlers_sdk/go
