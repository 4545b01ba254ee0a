/** A queue of any length: adding and removing at its ends takes constant time, as Array.shift does not. */
export class Queue {
  constructor() {
    this.items = []
    this.head = 0
  }

  static of(items) {
    const queue = new Queue()
    for (const item of items) queue.push(item)
    return queue
  }

  get size() {
    return this.items.length - this.head
  }

  get first() {
    return this.items[this.head]
  }

  push(item) {
    this.items.push(item)
  }

  unshift(item) {
    if (this.head > 0) this.items[--this.head] = item
    else this.items.unshift(item)
  }

  shift() {
    const item = this.items[this.head]
    this.items[this.head++] = undefined
    if (this.head === this.items.length) {
      this.items = []
      this.head = 0
    } else if (this.head > 1024 && this.head * 2 > this.items.length) {
      this.items = this.items.slice(this.head)
      this.head = 0
    }
    return item
  }
}
