"""quantmedic: why did my network lose accuracy when it was quantized, and what do I change?"""
