#!/usr/bin/env python3
"""Writes the first layers of a GGUF model as a model of their own, with its tokenizer.

What it says means nothing, but its steps are short, so that what is added to a step shows.

    pip install gguf
    benches/first_layers.py MODEL.gguf 1 first-layer.gguf
"""

import argparse
import re

import gguf


def copy_fields(reader, writer, architecture, num_layers):
    """Copies what describes the model, but for its number of layers."""
    block_count = f"{architecture}.block_count"
    for name, field in reader.fields.items():
        # The first are the file's own, and the architecture is the writer's.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = num_layers if name == block_count else field.contents()
        writer.add_key_value(name, value, field.types[0], sub_type=element)


def copy_tensors(reader, writer, num_layers):
    for tensor in reader.tensors:
        layer = re.match(r"blk\.(\d+)\.", tensor.name)
        if layer is None or int(layer[1]) < num_layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("num_layers", type=int)
    parser.add_argument("out")
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.model)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(args.out, architecture)
    copy_fields(reader, writer, architecture, args.num_layers)
    copy_tensors(reader, writer, args.num_layers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
