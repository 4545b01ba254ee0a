# frozen_string_literal: true

require "stepwire"

# Packs what was reserved.
class Pack
  include Stepwire::Handler
  handles "orders.pack"

  def call(ctx, reservation:, **)
    ctx.log.info("packing #{reservation}")
    { parcel: reservation.sub("R-", "P-") }
  end
end

worker = Stepwire::Worker.from_env
worker.add(Pack)
worker.run
