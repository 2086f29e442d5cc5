"""An OpenAI-compatible server in the trainer that records each generation of an attempt: `gateway_server.Gateway`.

call_reader       a request's body -> GatewayCall
recognition       a conversation -> prompt ids, and the recorded turn that they continue
attempt           the generations, turns, limits and counts of one attempt
pace              the sampler's speed and the deadlines of generations
answers           a finished generation -> a chat completion or a completion, complete or as a stream
gateway_options   the address on which the gateway listens, and the address for task apps
gateway_server    routes, capabilities, delivery
"""
