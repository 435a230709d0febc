"""A small real child for the channel's tests: behaves well, or badly in the way that it is asked to."""

import os
import signal
import sys
import time

from coda_synth.evaluator.channel import Message, serve

held = []


def echo(data, blobs):
    return Message({"said": data["text"], "count": len(blobs)}, tuple(bytes(b)[::-1] for b in blobs))


def fail(data, blobs):
    raise ZeroDivisionError("on purpose")


def hang(data, blobs):
    time.sleep(600)
    return Message({})


def die(data, blobs):
    os.kill(os.getpid(), getattr(signal, data["signal"]))
    time.sleep(600)
    return Message({})


def leave(data, blobs):
    print("leaving early")
    sys.stdout.flush()
    os._exit(data["code"])


def flood(data, blobs):
    for _ in range(data["lines"]):
        print("x" * 1000)
        print("y" * 1000, file=sys.stderr)
    return Message({"printed": data["lines"]})


def garbage(data, blobs):
    os.write(int(sys.argv[2]), bytes.fromhex(data["hex"]) * 64)
    time.sleep(600)
    return Message({})


def eat(data, blobs):
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20) * 32))


def hold(data, blobs):
    held.append(b"x" * data["bytes"])
    return Message({})


def breed(data, blobs):
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return Message({"child": pid})


OPS = {f.__name__: f for f in (echo, fail, hang, die, leave, flood, garbage, eat, hold, breed)}

if __name__ == "__main__":
    if os.environ.get("CHANNEL_CHILD_STILLBORN"):
        sys.exit("no reason to live")
    serve(OPS, hello=lambda: {"pid": os.getpid()})
