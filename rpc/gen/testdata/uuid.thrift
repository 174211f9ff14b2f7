namespace go ids

typedef uuid Key

struct Item {
  1: uuid id
  2: binary bytes
}

service Store {
  uuid put(1: Item item (bifrost.ref), 2: Key key, 3: list<uuid> tags)
  binary get(1: uuid id, 2: map<uuid, i32> counts) (bifrost.ref, bifrost.policy = "recover")
}
